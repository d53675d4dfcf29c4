"""placeholder"""


def gbnf_to_lark(text: str) -> str:
    return text
