"""Chat formats: conversations as token ids, composed piece by piece.

Episodes grow one message at a time and sampled ids are never decoded and encoded again, so a conversation
must be a plain concatenation:

    bos, then for every message   opening(role) + encode(text) + closing(role)

Chat templates are programs over whole conversations. `ChatFormat.from_tokenizer` renders a template around
sentinel texts, reads the pieces off the result, and checks that the composition gives the template's own ids.
A default system prompt is left out on purpose (give the system message explicitly), and the date that some
Llama templates print is fixed, so that a conversation has the same ids every day.

Some templates rewrite earlier turns: Qwen3's drops their <think> blocks and the empty one that
enable_thinking=false puts before an answer. A conversation here always keeps the ids that were sampled.
`ChatFormat.rewrites` says what such a template would change; who builds on one has to accept that.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from jinja2 import TemplateError
from tokenizers import Encoding, Tokenizer
from transformers import PreTrainedTokenizerFast

Message = tuple[str, str]

SYSTEM, USER, ASSISTANT, NEXT_USER = "zqsystemqz", "zquserqz", "zqassistantqz", "zqnextqz"
DATE = "26 Jul 2024"
TURNS_CHECKED = 3


@dataclass(frozen=True)
class ChatFormat:
    """The pieces of one tokenizer's chat template.

    bos           ids before the first message, at most one
    stop_id       id that ends an assistant message: the first of `closing("assistant")`
    needs_system  without a system message the template puts in one of its own: begin with one
    rewrites      how the template would change a turn once another follows; empty for append-only templates
    """

    bos: list[int]
    stop_id: int
    needs_system: bool
    pieces: dict[str, tuple[list[int], list[int]]]
    text: TextCodec
    rewrites: str = ""

    @staticmethod
    def from_tokenizer(
        tokenizer: PreTrainedTokenizerFast, enable_thinking: bool | None = None
    ) -> ChatFormat:
        """Derive the format from the tokenizer's chat template.

        enable_thinking   given to the template; None leaves it to the template's default

        Raises ValueError when there is no template, when it does not compose message by message, and when it
        knows nothing of an `enable_thinking` that is given.
        """
        if not tokenizer.chat_template:
            raise ValueError(
                f"tokenizer {tokenizer.name_or_path!r} has no chat template; add chat_template.jinja "
                "to the model folder"
            )
        if enable_thinking is not None and "enable_thinking" not in str(tokenizer.chat_template):
            raise ValueError(
                f"the chat template of {tokenizer.name_or_path!r} has no enable_thinking; leave it unset"
            )
        options: dict[str, Any] = {} if enable_thinking is None else {"enable_thinking": enable_thinking}
        return _Derivation(tokenizer, options).chat_format()

    def opening(self, role: str) -> list[int]:
        """Ids before a message's text; for the assistant this is the template's generation prompt."""
        return self._piece(role)[0]

    def closing(self, role: str) -> list[int]:
        """Ids after a message's text."""
        return self._piece(role)[1]

    def message(self, role: str, text: str) -> list[int]:
        """Ids of one whole message."""
        opening, closing = self._piece(role)
        return [*opening, *self.encode(text), *closing]

    def conversation(self, messages: Iterable[Message]) -> list[int]:
        """Ids of (role, text) messages from the beginning of a sequence on."""
        messages = list(messages)
        if self.needs_system and (not messages or messages[0][0] != "system"):
            raise ValueError("the chat template adds a system prompt of its own; start with a system message")
        return [*self.bos, *(i for role, text in messages for i in self.message(role, text))]

    def encode(self, text: str) -> list[int]:
        """Ids of plain text: strings that look like special tokens stay text.

        Raises ValueError, naming the word, where the tokenizer has no ids for it.
        """
        return self.text.encode(text)

    def decode(self, ids: Sequence[int]) -> str:
        """Text of ids, special tokens written out; a final stop token is not part of the text."""
        ids = [int(i) for i in ids]
        return self.text.decode(ids[:-1] if ids and ids[-1] == self.stop_id else ids)

    def _piece(self, role: str) -> tuple[list[int], list[int]]:
        if role not in self.pieces:
            raise ValueError(f"the chat template has no role {role!r}; it has {', '.join(self.pieces)}")
        return self.pieces[role]


class TextCodec:
    """Text to ids and back without special tokens, padding or truncation."""

    def __init__(self, tokenizer: PreTrainedTokenizerFast) -> None:
        backend = tokenizer.backend_tokenizer
        if type(backend.model).__name__ == "WordLevel" and tokenizer.unk_token_id is None:
            raise ValueError(
                f"word-level tokenizer {tokenizer.name_or_path!r} has no unk_token; unknown words would "
                "go unnoticed"
            )
        self._backend = Tokenizer.from_str(backend.to_str())
        self._backend.encode_special_tokens = True
        self._backend.no_padding()
        self._backend.no_truncation()
        self._unknown = tokenizer.unk_token_id
        self._reserved = frozenset(tokenizer.all_special_ids)

    def encode(self, text: str) -> list[int]:
        encoding = self._backend.encode(text, add_special_tokens=False)
        ids: list[int] = encoding.ids
        if not self._reserved.isdisjoint(ids):
            self._reject(text, encoding)
        return ids

    def decode(self, ids: list[int]) -> str:
        return self._backend.decode(ids, skip_special_tokens=False)

    def decode_each(self, ids: Iterable[int]) -> list[str]:
        """The text of every id on its own."""
        return self._backend.decode_batch([[i] for i in ids], skip_special_tokens=False)

    def _reject(self, text: str, encoding: Encoding) -> None:
        at = next(i for i, token in enumerate(encoding.ids) if token in self._reserved)
        start, end = encoding.offsets[at]
        if encoding.ids[at] == self._unknown:
            raise ValueError(f"unknown word {text[start:end]!r}: it is not in the tokenizer's vocabulary")
        raise ValueError(
            f"text contains the special token {text[start:end]!r}, which this tokenizer cannot encode "
            "as plain text"
        )


class _Derivation:
    """One pass over one template; the pieces are texts until `chat_format` turns them into ids."""

    def __init__(self, tokenizer: PreTrainedTokenizerFast, options: dict[str, Any]) -> None:
        self.tokenizer = tokenizer
        self.options = options
        self.text = TextCodec(tokenizer)

    def chat_format(self) -> ChatFormat:
        bos, needs_system, texts, past_opening = self._texts()
        pieces = {role: self._encode_pair(pair) for role, pair in texts.items()}
        if self._unencodable(pieces.get("system")):
            del pieces["system"]
        if needs_system and "system" not in pieces:
            raise self._error("begins a conversation with text of its own and accepts no system message")
        for role, pair in pieces.items():
            if self._unencodable(pair):
                raise ValueError(
                    f"the tokenizer has no ids for the template's {role} message {texts[role]!r}; "
                    "add the missing special tokens"
                )
        closing = pieces["assistant"][1]
        if not closing or closing[0] not in self.tokenizer.all_special_ids:
            raise self._error(
                "does not end an assistant message with a special token, so nothing can stop one"
            )
        derived = ChatFormat(self._ids(bos), closing[0], needs_system, pieces, self.text, self._rewrites())
        self._verify(derived, self._ids(past_opening))
        return derived

    def _texts(self) -> tuple[str, bool, dict[str, tuple[str, str]], str]:
        """(bos, whether a system message must be given, (opening, closing) by role, the assistant's opening
        in earlier turns), all as text."""
        first = self._render(("user", USER))
        turn = self._render(("user", USER), ("assistant", ASSISTANT))
        turns = self._render(("user", USER), ("assistant", ASSISTANT), ("user", NEXT_USER))
        prompted = self._render(("user", USER), prompt=True)
        if not prompted.startswith(first):
            raise self._error("renders a conversation differently once a generation prompt follows")
        closing = _after(turn, ASSISTANT)
        between = self._between(turns, ASSISTANT, NEXT_USER)
        if not between.startswith(closing):
            raise self._error("ends the last assistant message differently from earlier ones")
        user = (between.removeprefix(closing), _after(first, USER))
        texts = {"user": user, "assistant": (prompted.removeprefix(first), closing)}
        head = first[: first.index(USER)]
        bos = self.tokenizer.bos_token or ""
        # SmolLM2 calls the token that opens every message its bos: that one is part of the openings.
        bos = bos if head.startswith(bos) and not user[0].startswith(bos) else ""
        system = self._system(bos, user[0])
        past_opening = self._between(turns, USER, ASSISTANT).removeprefix(user[1])
        pieces = texts if system is None else {"system": system, **texts}
        return bos, head != bos + user[0], pieces, past_opening

    def _rewrites(self) -> str:
        """What the template changes of a turn once the next one follows, looked for turn by turn."""
        for kind, said in (("", "{}"), (" with a <think> block", "<think>\nzqplanqz\n</think>\n\n{}")):
            dialogue: list[Message] = [("user", USER)]
            for turn in range(1, TURNS_CHECKED + 1):
                prompt = self._apply(dialogue, prompt=True)
                response = said.format(f"zqact{turn}qz")
                dialogue += [("assistant", response), ("user", f"zqsee{turn}qz")]
                longer = self._seen(self._apply(dialogue, prompt=True))
                before = self._seen(prompt + response)
                if not longer.startswith(before):
                    at = _common_prefix(longer, before)
                    return (
                        f"an answer{kind} in turn {turn} is rewritten once turn {turn + 1} follows: "
                        f"{longer[at : at + 30]!r} instead of {before[at : at + 30]!r}"
                    )
        return ""

    def _seen(self, text: str) -> str:
        """The text as the tokenizer tells texts apart: without blanks if they never make a difference."""
        word = _known_words(self.tokenizer, self.text)[0]
        ignores_blanks = self._ids(f"{word} {word}") == self._ids(f" {word}  {word} ")
        return "".join(text.split()) if ignores_blanks else text

    def _system(self, bos: str, user_opening: str) -> tuple[str, str] | None:
        """(opening, closing) of a system message; None where the template has none of its own kind."""
        try:
            text = self._render(("system", SYSTEM), ("user", USER))
        except ValueError:
            return None
        between = self._between(text, SYSTEM, USER)
        if not text.startswith(bos) or not user_opening or not between.endswith(user_opening):
            return None
        return text[len(bos) : text.index(SYSTEM)], between.removesuffix(user_opening)

    def _verify(self, derived: ChatFormat, past_opening: list[int]) -> None:
        """The composition must give the template's own ids on a conversation of known words.

        An earlier answer that the template opens differently is `rewrites`' to tell, not compared here.
        """
        words = _known_words(self.tokenizer, self.text)
        sample: list[Message] = [(role, f"{words[0]} {words[-1]}") for role in ("user", "assistant", "user")]
        if "system" in derived.pieces:
            sample.insert(0, ("system", f"{words[-1]} {words[0]}"))
        want = self._ids(self._render(*sample, prompt=True))
        said = {**derived.pieces, "assistant": (past_opening, derived.closing("assistant"))}
        got = replace(derived, pieces=said).conversation(sample) + derived.opening("assistant")
        if got != want:
            at = _common_prefix(got, want)
            raise self._error(
                f"does not compose message by message: ids differ from position {at} on, "
                f"{self._show(got, at)} instead of {self._show(want, at)}"
            )

    def _render(self, *messages: Message, prompt: bool = False) -> str:
        text = self._apply(messages, prompt)
        missing = [role for role, content in messages if content not in text]
        if missing:
            raise self._error(f"drops the {missing[0]} message")
        return text

    def _apply(self, messages: Sequence[Message], prompt: bool) -> str:
        dialogue = [{"role": role, "content": text} for role, text in messages]
        try:
            text = self.tokenizer.apply_chat_template(
                dialogue,
                tokenize=False,
                add_generation_prompt=prompt,
                date_string=DATE,
                **self.options,
            )
        except TemplateError as error:
            raise self._error(
                f"refuses the roles {', '.join(role for role, _ in messages)}: {error}"
            ) from error
        except Exception as error:  # a template is a program of others: it may raise anything
            raise self._error(f"fails: {type(error).__name__}: {error}") from error
        assert isinstance(text, str)
        return text

    def _between(self, text: str, left: str, right: str) -> str:
        return text[text.index(left) + len(left) : text.index(right)]

    def _encode_pair(self, pair: tuple[str, str]) -> tuple[list[int], list[int]]:
        return self._ids(pair[0]), self._ids(pair[1])

    def _ids(self, text: str) -> list[int]:
        return list(self.tokenizer(text, add_special_tokens=False)["input_ids"])

    def _unencodable(self, pair: tuple[list[int], list[int]] | None) -> bool:
        unknown = self.tokenizer.unk_token_id
        return pair is not None and unknown is not None and unknown in pair[0] + pair[1]

    def _show(self, ids: list[int], at: int) -> str:
        return repr(self.tokenizer.decode(ids[max(at - 2, 0) : at + 3], skip_special_tokens=False))

    def _error(self, problem: str) -> ValueError:
        return ValueError(f"the chat template of {self.tokenizer.name_or_path!r} {problem}")


def _common_prefix(a: Sequence[object], b: Sequence[object]) -> int:
    """Length of what two sequences begin with alike."""
    differs = (i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y)
    return next(differs, min(len(a), len(b)))


def _after(text: str, sentinel: str) -> str:
    return text[text.rindex(sentinel) + len(sentinel) :]


def _known_words(tokenizer: PreTrainedTokenizerFast, text: TextCodec) -> list[str]:
    """Up to eight plain words that the tokenizer certainly has ids for."""
    special = set(tokenizer.all_special_tokens)
    vocabulary: Callable[[str], int] = tokenizer.get_vocab().__getitem__
    plain = (
        w
        for w in sorted(tokenizer.get_vocab(), key=vocabulary)
        if w.isascii() and w.isalpha() and w not in special
    )
    words = [word for word, _ in zip(plain, range(8), strict=False)]
    if not words:
        raise ValueError(f"the vocabulary of {tokenizer.name_or_path!r} holds no plain word")
    return words
