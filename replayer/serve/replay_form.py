"""What the page and the API take of a replay: the command's options, but for those that read files or name brokers."""

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, StringConstraints, ValidationError, model_validator

from blockgz.archive.topics import parse_topic
from blockgz.errors import UsageError
from index_format.errors import BadName
from index_format.keys import check_topic, parse_topic_folder

Text = Annotated[str, StringConstraints(max_length=2000, pattern=r"^[^\x00]*$")]
Texts = Annotated[list[Text], Field(max_length=100)]


class ReplayForm(BaseModel):
    """A replay as it is asked for; empty texts count as not given. See `replayer replay --help` for each."""

    model_config = ConfigDict(extra="forbid", str_strip_whitespace=True)

    topic: Text = Field(description="TOPIC or TOPIC:P,P-P", min_length=1)
    to_topic: Text = Field(description="The target; {topic} stands for the archived topic's name.", min_length=1)
    start: Text | None = Field(None, alias="from")
    to: Text | None = None
    at: Text | None = None
    at_rule: Literal["majority", "first"] | None = Field(
        None, description="Where `at` ends a partition whose clocks disagree; without it, a doubt is answered with 409"
    )
    since: Text | None = None
    until: Text | None = None
    key: Texts = []
    null_key: bool = False
    header: Texts = []
    grep: Text | None = None
    partitions: Text | None = Field(None, description="keep, by-key, by-key:N, N, or a map")
    timestamps: Text | None = None
    strip_header: Texts = []
    add_header: Texts = []
    provenance: bool = False
    tombstones: Literal["keep", "drop"] | None = None
    allow_unchanged: bool = False
    create_topic: bool = False
    topic_config: Texts = []
    append: bool = False
    retention: Literal["refuse", "hold"] | None = None
    on_damage: Literal["stop", "skip"] | None = None
    transactional: bool = False
    partial: bool = False
    rate: Text | None = None
    speed: Text | None = None
    compression: Text | None = None
    patience: Text | None = None
    job: Text | None = None

    @model_validator(mode="after")
    def _check_names(self) -> "ReplayForm":
        try:
            check_topic(self.named_target)
        except (ValueError, BadName) as error:
            raise ValueError(str(error)) from error
        return self

    @property
    def named_target(self) -> str:
        """The target's name."""
        return self.to_topic.replace("{topic}", parse_topic_folder(parse_topic(self.topic).topic).topic)

    @property
    def arguments(self) -> list[str]:
        """The options of the command, each as one word; the topic and the job are apart."""
        words: list[str] = []
        for name, field in type(self).model_fields.items():
            value, option = getattr(self, name), f"--{(field.alias or name).replace('_', '-')}"
            if name in ("topic", "job") or value in (None, "", False):
                continue
            if value is True:
                words.append(option)
            else:
                words += [f"{option}={each}" for each in (value if isinstance(value, list) else [value]) if each]
        return words


def form_of(fields: dict[str, Any] | str) -> ReplayForm:
    """The form of fields, or of their JSON text; raises UsageError.

    A job's folder that others can write to is believed no more than a request is.
    """
    try:
        if isinstance(fields, str):
            return ReplayForm.model_validate_json(fields)
        return ReplayForm.model_validate(fields)
    except ValidationError as error:
        problem = error.errors()[0]
        where = ".".join(map(str, problem["loc"]))
        raise UsageError("the replay cannot be asked for so", why=f"{where}: {problem['msg']}") from error
