"""The sentences of the embedded text world: templates, words for their slots, and the styles that people write in.

All of it is made up for this project. Classes share most of their words on purpose: a message may speak of a train and
a song may be called like the weather, so that single words do not give the class away.
"""

from __future__ import annotations

from collections.abc import Callable
from random import Random

WORDS: dict[str, tuple[str, ...]] = {
    "name": ("anna", "tom", "mia", "omar", "lena", "joe", "my sister", "the office", "dad", "yuki"),
    "city": ("london", "porto", "berlin", "oslo", "kyoto", "lima", "delhi", "york"),
    "day": ("today", "tomorrow", "on monday", "on friday", "next week", "tonight", "this evening", "on sunday"),
    "time": ("7:30", "6 am", "8 pm", "noon", "9:15", "10 o'clock", "5:45", "11 am"),
    "room": ("kitchen", "bedroom", "hall", "garden", "office", "bathroom"),
    "food": ("milk", "rice", "apples", "bread", "coffee", "eggs", "cheese", "soap"),
    "thing": ("dentist", "call with tom", "birthday", "train", "lunch", "meeting", "game", "flight"),
    "song": ("rain in london", "wake me up", "train to porto", "light my way", "summer days", "bread and roses"),
    "share": ("half", "twenty percent", "full", "a little", "low", "medium"),
    "sky": ("rain", "snow", "sun", "wind", "fog", "a storm"),
    "news": (
        "the train is late",
        "i will be there at 8 pm",
        "it rains",
        "lunch is off",
        "the lights are on",
        "buy milk",
    ),
}

CLASSES: dict[str, tuple[str, ...]] = {
    "alarm": (
        "set an alarm for {time} {day}", "wake me at {time}", "cancel the alarm at {time}", "ring at {time} {day}",
        "i need to be up at {time} {day}", "move the {time} alarm to {day}",
    ),
    "calendar": (
        "put the {thing} at {time} {day}", "remind me of the {thing} {day}", "when is the {thing}",
        "move the {thing} to {time}", "am i free at {time} {day}", "remind me that {news}",
    ),
    "light": (
        "set the {room} to {share}", "put the lights on in the {room}", "make the {room} less bright",
        "lights off in the {room} at {time}", "it is too dark in the {room}", "dim the {room} {day}",
    ),
    "message": (
        "tell {name} that {news}", "write to {name} about the {thing}", "ask {name} if there is {sky} in {city}",
        "let {name} know that {news}", "send {name} the time of the {thing}", "answer {name} with {news}",
    ),
    "music": (
        "play {song}", "put on {song} in the {room}", "next song", "play something for the {thing}",
        "set the music to {share}", "i want to hear {song} at {time}",
    ),
    "shopping": (
        "put {food} on the list", "we need {food} and {food}", "get {food} {day}", "take {food} off the list",
        "is there {food} on the list", "order {food} for the {thing}",
    ),
    "travel": (
        "when does the train to {city} leave", "how do i get to {city} {day}", "find a flight to {city} at {time}",
        "how long is the way to the {thing}", "is the train from {city} late", "get me to {city} for the {thing}",
    ),
    "weather": (
        "will there be {sky} in {city} {day}", "is it warm in {city}", "do i need a coat {day}",
        "how is it in {city} at {time}", "when does the {sky} stop", "what is it like out {day}",
    ),
}  # fmt: skip

_NUMBERS = {
    "7:30": "half past seven", "6 am": "six in the morning", "8 pm": "eight in the evening", "5:45": "quarter to six",
    "9:15": "quarter past nine", "10 o'clock": "ten o'clock", "11 am": "eleven in the morning",
}  # fmt: skip
_SHORT = {
    "you": "u", "are": "r", "to": "2", "for": "4", "tomorrow": "tmrw", "tonight": "2nite", "at": "@", "today": "2day",
    "and": "n", "the": "da", "with": "w", "is": "iz", "in": "n", "be": "b",
}  # fmt: skip
_SMALL = {"the", "a", "an", "in", "at", "on", "to", "of", "for", "is", "it", "i", "me", "do", "does", "there", "that"}


def _one(draw: Random, options: tuple[str, ...]) -> str:
    return options[int(draw.random() * len(options))]  # `choice` may differ between versions of Python


def _plain(text: str, draw: Random) -> str:
    return text


def _polite(text: str, draw: Random) -> str:
    before = _one(draw, ("could you please ", "would you kindly see to this: ", "please, ", "if you do not mind, "))
    return before + text + _one(draw, (", thank you", ", thanks a lot", " please", ", that would be lovely"))


def _terse(text: str, draw: Random) -> str:
    return " ".join(w for w in text.split() if w not in _SMALL) or text


def _chatty(text: str, draw: Random) -> str:
    words = " ".join(_SHORT.get(w, w) for w in text.split())
    return _one(draw, ("hey ", "yo ", "so um ", "ok ", "")) + words + _one(draw, (" lol", " pls", "!!", " thx", ""))


def _formal(text: str, draw: Random) -> str:
    before = _one(draw, ("I should like the following: ", "Kindly note: ", "Request: ", "To whom it concerns: "))
    return before + text[:1].upper() + text[1:] + "."


def _spoken(text: str, draw: Random) -> str:
    for digits, words in _NUMBERS.items():
        text = text.replace(digits, words)
    return _one(draw, ("", "well ", "er ", "hm ", "right ")) + text.replace("'", "")


STYLES: dict[str, Callable[[str, Random], str]] = {
    "plain": _plain, "polite": _polite, "terse": _terse, "chatty": _chatty, "formal": _formal, "spoken": _spoken,
}  # fmt: skip


def sentence(kind: str, style: str, draw: Random) -> str:
    """One request of a class, in a style."""
    template = _one(draw, CLASSES[kind])
    while "{" in template:
        slot = template[template.index("{") + 1 : template.index("}")]
        template = template.replace("{" + slot + "}", _one(draw, WORDS[slot]), 1)
    return STYLES[style](template, draw)
