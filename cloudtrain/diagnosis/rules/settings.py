"""Rules of contradictory, unknown or missing settings, and of messages of libraries."""

from __future__ import annotations

from cloudtrain.diagnosis.rule import Rule

_OF_PYTHON = (
    r"(?![^<]*(NoneType|to unpack|expected str|subscriptable|not iterable))"
    r"(?!(UnboundLocal|Name|ZeroDivision|Index|Key|Attribute)Error: [^<]{0,100}(<|$))"
)
"""Exceptions of Python itself: their kind tells more."""
_ERROR = rf"^{_OF_PYTHON}(\w+Error|\w*Exception)"
_ADVISES = (
    r"\b([Pp]lease|[Yy]ou (can ?not|can't|must|should|need|have to|are"
    r" (trying|attempting)|passed|provided|set)|"
    r"[Yy]ou specified|[Mm]ake sure|[Tt]ry (to|using|setting)|[Cc]onsider|[Dd]id you)\b"
)
_FORBIDS = (
    r"\b((must|should|has to|have to|needs? to|expected to) (be|have|match|equal)|can only|can"
    r" ?not be|"
    r"(is|are) not (supported|allowed|implemented|compatible|valid|available)|not"
    r" supported|[Uu]nsupported|[Ii]nvalid|"
    r"only supports?|requires?)\b"
)
_LONG = r": [^<]{12,}"
_LIBRARY = r"<[^<]*(site|dist)-packages/"

SETTINGS = (
    Rule(
        name="settings-refused",
        patterns=(
            r"MisconfigurationException|omegaconf\.errors\.\w+|hydra\.errors\.\w+|MissingMandatoryValue|"
            r"is not in struct|"
            r"ConfigAttributeError|ConfigKeyError|InstantiationException|Error merging '|Cannot"
            r" find primary config",
            r"correct the following DeepSpeed config|DeepSpeedConfigError|[Bb]atch related"
            r" parameters|"
            r"--\w{2,60} requires |validation errors? for \w|Could not override '|Missing mandatory"
            r" value",
            r"yaml\.(scanner|parser|constructor|reader)\.\w+Error|TOMLDecodeError|jsonargparse|Unknown"
            r" (optimizer|"
            r"scheduler|"
            r"loss|dataset|model name|strategy|argument|config)|is not in the \w+ registry|mutually"
            r" exclusive",
            r"is not a valid \w+, please select|(can ?not|can't) be used (together|with|at the same"
            r" time)|"
            r"Some keys are not used",
            r"must be (divisible|a multiple) (by|of)|should be divisible by|is not divisible by|"
            r"Some specified arguments are not",
            r"Target modules .{0,200}not found|conditioned on metric|could not find the monitored"
            r" key|"
            r"Could not find the transformer layer class",
            r"Additional properties are not allowed|is not valid under any of the given schemas",
        ),
        places=(
            r"^(?!KeyboardInterrupt)[^<]*<[^<]*[/\\](hydra|omegaconf|pydantic|pydantic_core|jsonargparse|yaml|"
            r"simple_parsing)[/\\]",
            r"^(ValueError|AssertionError|KeyError|TypeError)[^<]*<[^<]*/(training_args|hf_argparser|"
            r"deepspeed/runtime/config\w*|config_utils|configuration_utils|data_connector|"
            r"configuration_validator)\.py:",
        ),
        unless=r"ModuleNotFound|No module named|shape|[Ww]arning",
        cause="the program refused its settings: one is unknown, missing, or contradicts another",
        remedy=(
            "the message names it: correct it in the configuration or in args; the versions of the"
            " packages decide which settings there are"
        ),
        restart="after a change",
        source="docs/reference/job-yaml.md",
    ),
)

SAID_BY_LIBRARIES = (
    Rule(
        name="refused-by-library",
        patterns=(
            (
                r"^\[?(ERROR|FATAL)\]?:? .{0,200}\b[Pp]lease (check|set|specify|provide|use|make"
                r" sure|upgrade|install)\b"
            ),
        ),
        places=(
            _ERROR + r": [^<]*" + _ADVISES,
            _ERROR + r": [^<]*" + _FORBIDS,
            _ERROR + _LONG + _LIBRARY,
        ),
        unless=r"TrainingFailedError",
        cause="a library rejected the call",
        remedy=(
            "read its message: it says what it expects; the frame of the program shows which call"
            " it is"
        ),
        restart="after a change",
        source="docs/guides/diagnose.md",
        is_general=True,
        is_catch_all=True,
    ),
)
