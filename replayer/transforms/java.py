"""What Java does differently: text of floats, narrowing of numbers, regular expressions."""

import math
import re
from collections.abc import Callable

import numpy as np

_NAMED_GROUP = re.compile(r"\(\?<(?=[A-Za-z])")
_QUOTED = re.compile(r"\\Q(.*?)(?:\\E|$)", re.DOTALL)
_SUBSTITUTE = re.compile(r"\\(.)|\$\{(\w+)\}|\$([0-9]+)|([\\$])", re.DOTALL)


def java_text(number: float) -> str:
    """As Double.toString writes it: plain from 0.001 to 10,000,000, else like 1.0E10."""
    if math.isnan(number) or math.isinf(number):
        return "NaN" if math.isnan(number) else "Infinity" if number > 0 else "-Infinity"
    if number == 0 or 1e-3 <= abs(number) < 1e7:
        return np.format_float_positional(number, trim="0")
    digits, _, exponent = np.format_float_scientific(number, trim="0").partition("e")
    return f"{digits}E{int(exponent)}"


def narrowed(number: int | float, bits: int) -> int:
    """A number as Java narrows it to an integer of so many bits: cut off, floats held at the ends first."""
    if isinstance(number, float):
        if math.isnan(number):
            return 0
        # A float first becomes an int, or a long where that is asked for, and is cut off only then.
        reach = 1 << max(bits, 32) - 1
        number = int(max(-reach, min(reach - 1, number)))
    half = 1 << bits - 1
    return (number + half) % (2 * half) - half


def float32(number: float) -> float:
    """The nearest single-precision float, by its shortest text."""
    with np.errstate(over="ignore"):
        return float(str(np.float32(number)))


def toward_zero(number: int, divisor: int) -> int:
    return abs(number) // divisor * (1 if number >= 0 else -1)


def java_pattern(text: str) -> re.Pattern[str]:
    """A java.util.regex pattern; raises re.error also for what Python has no equal of."""
    quoted = _QUOTED.sub(lambda match: re.escape(match[1]), text)
    return re.compile(_NAMED_GROUP.sub("(?P<", quoted), re.ASCII)


def java_replacement(pattern: re.Pattern[str], text: str) -> Callable[[re.Match[str]], str]:
    """What `Matcher.replaceFirst` puts in: `$1`, `${name}` and backslashes; raises ValueError for what is malformed."""
    parts: list[str | int] = []
    at = 0
    for match in _SUBSTITUTE.finditer(text):
        parts.append(text[at : match.start()])
        at = match.end()
        escaped, name, number, stray = match.groups()
        if stray is not None:
            raise ValueError(f"{stray} stands for itself only after a backslash")
        if escaped is not None:
            parts.append(escaped)
        elif name is not None:
            if name not in pattern.groupindex:
                raise ValueError(f"the pattern has no group {name}")
            parts.append(pattern.groupindex[name])
        else:
            group, rest = _longest_group(number, pattern.groups)
            parts += [group, rest]
    parts.append(text[at:])
    return lambda match: "".join(part if isinstance(part, str) else match[part] or "" for part in parts)


def _longest_group(digits: str, groups: int) -> tuple[int, str]:
    """The first digit is a group; more of them belong to it as long as there is such a group."""
    for length in range(len(digits), 0, -1):
        if int(digits[:length]) <= groups:
            return int(digits[:length]), digits[length:]
    raise ValueError(f"the pattern has no group {digits[0]}")
