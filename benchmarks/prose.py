"""Endless plain English without meaning, the same for the same seed on every machine: the text that workloads are cut from.

Common words in sentences and paragraphs, so that it tokenises as ordinary text does. Knows nothing of tokens.
"""

from __future__ import annotations

import random


def _words(text: str) -> tuple[str, ...]:
    return tuple(text.split())


_NOUNS = _words(
    "time year people way day man thing woman life child world school state family student group country problem hand part "
    "place case week company system program question work government number night point home water room mother area money "
    "story fact month lot right study book eye job word business issue side kind head house service friend father power hour "
    "game line end member law car city community name president team minute idea body information back parent face others "
    "level office door health person art war history party result change morning reason research girl guy moment air teacher "
    "force education river mountain window garden letter engine bridge market winter summer machine paper kitchen village"
)
_VERBS = _words(
    "takes makes finds gives tells asks works calls needs becomes leaves puts means keeps begins helps shows hears plays runs "
    "moves lives believes holds brings happens writes provides sits stands loses pays meets includes continues sets learns "
    "changes leads understands watches follows stops creates speaks reads allows adds spends grows opens walks wins offers "
    "remembers considers appears buys waits serves sends expects builds stays falls cuts reaches kills remains suggests raises"
)
_QUALITIES = _words(
    "new good first last long great little own other old right big high different small large next early young important few "
    "public bad same able human local sure better best economic strong possible whole free military true federal international "
    "full special easy clear recent certain personal open red difficult available likely short single medical current wrong"
)
_JOINTS = _words("and but because while although so when before after if where unless")


def write(random_: random.Random, words: int) -> str:
    """At least `words` words of prose."""
    paragraphs: list[str] = []
    written = 0
    while written < words:
        sentences = [_sentence(random_) for _ in range(random_.randint(3, 7))]
        written += sum(len(sentence.split()) for sentence in sentences)
        paragraphs.append(" ".join(sentences))
    return "\n\n".join(paragraphs)


def _sentence(random_: random.Random) -> str:
    parts = [_clause(random_)]
    while random_.random() < 0.4:
        parts.append(f"{random_.choice(_JOINTS)} {_clause(random_)}")
    text = (", " if random_.random() < 0.5 else " ").join(parts)
    return text[0].upper() + text[1:] + random_.choice(("." * 9) + "?")


def _clause(random_: random.Random) -> str:
    def noun() -> str:
        quality = f"{random_.choice(_QUALITIES)} " if random_.random() < 0.5 else ""
        return f"{random_.choice(('the', 'a', 'this', 'every', 'my'))} {quality}{random_.choice(_NOUNS)}"

    where = f" {random_.choice(('in', 'near', 'with', 'for', 'of'))} {noun()}" if random_.random() < 0.5 else ""
    count = f" {random_.randint(2, 2000)} times" if random_.random() < 0.1 else ""
    return f"{noun()} {random_.choice(_VERBS)} {noun()}{where}{count}"
