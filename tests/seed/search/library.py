"""A small library and questions about it."""

PASSAGES = [
    {"id": "a", "title": "Nile", "text": "The Nile is a river in Africa, about 6,650 km long."},
    {"id": "b", "title": "Amazon River", "text": "The Amazon is a river in South America."},
    {"id": "c", "title": "Danube", "text": "The Danube flows through Vienna and Budapest."},
    {"id": "d", "contents": '"Vienna"\nVienna is the capital of Austria.'},
    {"id": "e", "title": "Empty", "text": ""},
]


def question(dataset, number, text, answers):
    return {"dataset": dataset, "id": number, "question": text, "golden_answers": answers}


QUESTIONS = [
    question("rivers", "1", "Which river in Africa is 6,650 km long?", ["Nile"]),
    question("rivers", "2", "Which river flows through Vienna?", ["The Danube"]),
    question("towns", "3", "What is the capital of Austria?", ["Vienna", "Wien"]),
    question("towns", "4", "Who built the lighthouse?", ["nobody"]),
]
