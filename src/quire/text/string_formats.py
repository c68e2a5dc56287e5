"""JSON Schema's formats as expressions for a whole text. Every text that matches is valid.

Some valid texts do not match: leap seconds, quoted local parts and address literals in mail
addresses, internationalized names.
"""

from __future__ import annotations

_LEAP = "([0-9]{2}(0[48]|[2468][048]|[13579][26])|([02468][048]|[13579][26])00)"
_DATE = (
    "([0-9]{4}-((0[13578]|1[02])-(0[1-9]|[12][0-9]|3[01])|(0[469]|11)-(0[1-9]|[12][0-9]|30)"
    f"|02-(0[1-9]|1[0-9]|2[0-8]))|{_LEAP}-02-29)"
)
_CLOCK = "([01][0-9]|2[0-3]):[0-5][0-9]"
_TIME = rf"{_CLOCK}:[0-5][0-9](\.[0-9]+)?(Z|[+\-]{_CLOCK})"
_DAYS = "([0-9]+Y([0-9]+M([0-9]+D)?)?|[0-9]+M([0-9]+D)?|[0-9]+D)"
_SECONDS = "T([0-9]+H([0-9]+M([0-9]+S)?)?|[0-9]+M([0-9]+S)?|[0-9]+S)"
_ALNUM, _OR_DASH = "[A-Za-z0-9]", r"[A-Za-z0-9\-]"
_LABEL = (  # at most 63 characters; "--" as third and fourth would mean an internationalized name
    f"{_ALNUM}({_OR_DASH}{{0,2}}{_ALNUM}"
    rf"|{_OR_DASH}({_ALNUM}{_OR_DASH}|\-{_ALNUM}){_OR_DASH}{{0,58}}{_ALNUM})?"
)
_HOST = rf"{_LABEL}(\.{_LABEL})*"
_ATOM = r"[A-Za-z0-9!#$%&'*+/=?^_`{|}~\-]+"
_BYTE = "(25[0-5]|2[0-4][0-9]|1[0-9]{2}|[1-9]?[0-9])"
_IPV4 = rf"{_BYTE}(\.{_BYTE}){{3}}"
_HEX = "[0-9A-Fa-f]"
_WORD = f"{_HEX}{{1,4}}"
_IPV6 = "|".join(
    [
        f"({_WORD}:){{7}}{_WORD}",
        *(f"({_WORD}:){{{n}}}(:{_WORD}){{1,{7 - n}}}" for n in range(1, 7)),
        f":(:{_WORD}){{1,7}}",
        f"({_WORD}:){{1,7}}:",
        "::",
        f"({_WORD}:){{6}}{_IPV4}",
        f"::({_WORD}:){{0,5}}{_IPV4}",
    ]
)
_UNRESERVED = r"A-Za-z0-9._~!$&'()*+,;=\-"
_ESCAPE = f"%{_HEX}{{2}}"
_PATH = f"([{_UNRESERVED}:@]|{_ESCAPE})"
_MORE = f"([{_UNRESERVED}:@/?]|{_ESCAPE})*"
_NAME = f"([{_UNRESERVED}]|{_ESCAPE})*"
_AUTHORITY = rf"(([{_UNRESERVED}:]|{_ESCAPE})*@)?({_NAME}|\[({_IPV6})\])(:[0-9]*)?"
_URI = (
    rf"[A-Za-z][A-Za-z0-9+.\-]*:(//{_AUTHORITY}(/{_PATH}*)*|/?({_PATH}+(/{_PATH}*)*)?)"
    rf"(\?{_MORE})?(#{_MORE})?"
)

FORMATS: dict[str, tuple[str, ...]] = {
    "date": (_DATE,),
    "time": (_TIME,),
    "date-time": (f"{_DATE}T{_TIME}",),
    "duration": (f"P({_DAYS}({_SECONDS})?|{_SECONDS}|[0-9]+W)",),
    "email": (rf"{_ATOM}(\.{_ATOM})*@{_HOST}", "[^@]{1,64}@.{1,190}"),
    "hostname": (_HOST, ".{1,253}"),
    "ipv4": (_IPV4,),
    "ipv6": (_IPV6,),
    "uuid": (f"{_HEX}{{8}}(-{_HEX}{{4}}){{3}}-{_HEX}{{12}}",),
    "uri": (_URI,),
}
"""Format → expressions; a text must match all of them completely."""

_HIERARCHY = rf"(//{_AUTHORITY}(/{_PATH}*)*|/?({_PATH}+(/{_PATH}*)*)?)"
_VARIABLE = r"[A-Za-z0-9_](\.?[A-Za-z0-9_])*(:[1-9][0-9]{0,3}|\*)?"
_LITERAL = r"([A-Za-z0-9 _:/,=@#%&!~'\"<>;\-]|\\[.*+?()\[\]{}|^$/\\dwsDWS]|\.|\[\^?[A-Za-z0-9_]+\])"
_SEQUENCE = rf"({_LITERAL}[*+?]?)*"
_POINTER = r"(/([^/~]|~[01])*)*"

NARROWED: dict[str, tuple[str, ...]] = {
    "uri-reference": (
        rf"^([A-Za-z][A-Za-z0-9+.\-]*:)?{_HIERARCHY}(\?{_MORE})?(#{_MORE})?$",
        r"^([^:/?#]*([/?#]|$)|[A-Za-z][A-Za-z0-9+.\-]*:)",
    ),
    "iri": (f"^({_URI})$",),
    "iri-reference": (f"^({_URI})$",),
    "uri-template": (
        rf"^([{_UNRESERVED}:/?#@]|{_ESCAPE}|\{{[+#./;?&]?{_VARIABLE}(,{_VARIABLE})*\}})*$",
    ),
    "idn-email": (rf"^{_ATOM}(\.{_ATOM})*@{_HOST}$", "^[^@]{1,64}@.{1,190}$"),
    "idn-hostname": (f"^{_HOST}$", "^.{1,253}$"),
    "json-pointer": (f"^{_POINTER}$",),
    "relative-json-pointer": (rf"^(0|[1-9][0-9]*)(#|{_POINTER})$",),
    "regex": (rf"^\^?({_SEQUENCE}|\({_SEQUENCE}(\|{_SEQUENCE})*\)[*+?]?)*\$?$",),
}
"""Formats that llguidance lacks: patterns that some of their texts match; all must match."""
