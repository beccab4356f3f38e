"""The word-level tokenizer of the household world, as an ordinary Hugging Face tokenizer folder.

A name such as "mug 1" is one token: a small model finds again and copies one token far sooner than two.
"""

from pathlib import Path

from tokenizers import Regex, Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from sprout.seed.envs.household.kinds import FAMILIES, LAMP_KIND, OBJECT_KINDS, RECEPTACLE_KINDS

PAD, UNKNOWN, END = "<pad>", "<unk>", "<end>"
ROLES = ("<system>", "<user>", "<assistant>")
CHAT_TEMPLATE = (
    "{% for message in messages %}"
    "{{ '<' + message['role'] + '> ' + message['content'] + ' <end> ' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<assistant>' }}{% endif %}"
)

_PUNCTUATION = '. , : ? ! > { } "'
_LARGEST_NUMBER = 20
_LARGEST_NAME = 3  # "mug 4" is rare, and two tokens
_COMMANDS = "go to open take from put in clean heat cool with use look inventory"
_OBSERVATIONS = "you see are at it is closed nothing happens under carry"
_TASKS = "a hot two act room . do the task one command each turn"
_SKILLS = "not other or them there first search after that repeat failed no advice this time hint"
_TRANSCRIPTS = "step end invalid outcome success failure"
_SUMMARIES = "episode_summary episode_skill found and did but find"
_QUESTIONS = """
    question what was did succeed yes which places were empty none seen how many commands done taken where
"""
_PROMPTS = """
    about advice again all an answer any as be before begin best can context could describe each end
    episode every example fail failed for give given happened help helps hindsight how i if into json
    know later learn line list made make me mistake more most must need new next of on only other out
    output place player plan policy read reader reading reason report result rule same say sentence short
    should skill so start steps summary tell text than that then these they thing things think was way
    went what when who why will without word words worked write writes wrong your analyze analyzer action
    actions attempt avoid because been both by check did does done find follow format get had has have it
    its keep last lesson long may much never note object observation observations once order trajectory
    turns use used useful user valid well which while would search future general generic key kind known
    simple step success instruction instructions following followed exactly two three answers empty open
    closed question questions correct true false important cause caused reached shortest directly finally
    always
"""
_NAMED = (LAMP_KIND, *RECEPTACLE_KINDS, *OBJECT_KINDS)
_MARKS = r'[{}":,.?!>]'
_NAME = rf"(?:{'|'.join(_NAMED)}) [1-{_LARGEST_NAME}](?!\d)"


def vocabulary() -> list[str]:
    """All tokens, in id order: special tokens, then words in a fixed order without repetition."""
    texts = (
        _PUNCTUATION,
        " ".join(str(number) for number in range(_LARGEST_NUMBER + 1)),
        _COMMANDS,
        LAMP_KIND,
        " ".join(RECEPTACLE_KINDS),
        " ".join(OBJECT_KINDS),
        " ".join(FAMILIES),
        _OBSERVATIONS,
        _TASKS,
        _SKILLS,
        _TRANSCRIPTS,
        _SUMMARIES,
        _QUESTIONS,
        _PROMPTS,
    )
    words = " ".join(texts).split()
    return list(dict.fromkeys([PAD, UNKNOWN, END, *ROLES, *words, *_names()]))


def _names() -> list[str]:
    return [f"{kind} {number + 1}" for kind in _NAMED for number in range(_LARGEST_NAME)]


def household_tokenizer() -> PreTrainedTokenizerFast:
    """Words, names and punctuation marks are tokens; decoding joins them with single spaces. No BOS token."""
    ids = {token: index for index, token in enumerate(vocabulary())}
    tokenizer = Tokenizer(models.WordLevel(ids, unk_token=UNKNOWN))
    word = rf"\b{_NAME}|{_MARKS}|[^\s{_MARKS[1:-1]}]+"
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex(word), "removed", invert=True)
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        pad_token=PAD,
        unk_token=UNKNOWN,
        eos_token=END,
        additional_special_tokens=list(ROLES),
        clean_up_tokenization_spaces=False,
    )
    fast.chat_template = CHAT_TEMPLATE
    return fast


def build_tokenizer(folder: str | Path) -> Path:
    """Write the tokenizer folder (tokenizer, its configuration and chat template) and return its path."""
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    household_tokenizer().save_pretrained(folder)
    return folder
