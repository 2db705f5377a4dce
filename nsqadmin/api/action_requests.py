"""Requests of actions: name, targets, confirmation, parameters. Pure.

Bad input gets an exact error here, before anything is asked or written down.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from nsqadmin.access.roles import Right
from nsqd.config.logs import parse_log_level
from nsqd.http.server import HttpError
from nsqd.protocol.names import is_valid_channel_name, is_valid_topic_name

MAX_TARGETS: Final = 500
MAX_IDS: Final = 100
MAX_MOVED: Final = 1_000_000
MAX_RATE: Final = 1_000_000


@dataclass(frozen=True, slots=True)
class Kind:
    """One action: the role that it needs, the kind of its targets, whether it must be confirmed."""

    right: Right
    has_topic: bool = True
    has_channel: bool = True  # may name one
    needs_node: bool = False
    may_name_node: bool = True
    needs_confirmation: bool = False


KINDS: Final[Mapping[str, Kind]] = {
    "pause": Kind(Right.OPERATE),
    "unpause": Kind(Right.OPERATE),
    "create": Kind(Right.OPERATE, may_name_node=False),
    "move": Kind(Right.OPERATE),
    "replay": Kind(Right.OPERATE),
    "empty": Kind(Right.ADMIN, needs_confirmation=True),
    "delete": Kind(Right.ADMIN, needs_confirmation=True),
    "drop": Kind(Right.ADMIN, needs_node=True, needs_confirmation=True),
    "tombstone": Kind(Right.ADMIN, has_channel=False, needs_node=True),
    "drain": Kind(*(Right.ADMIN, False, False), needs_node=True, needs_confirmation=True),
    "set_limits": Kind(Right.ADMIN, has_channel=False),
    "close_client": Kind(Right.ADMIN, False, False, needs_node=True),
    "set_log_level": Kind(Right.ADMIN, False, False, needs_node=True),
}


@dataclass(frozen=True, slots=True)
class Target:
    """The target of an action; "" for all nodes, or for the topic itself."""

    topic: str = ""
    channel: str = ""
    node: str = ""

    @property
    def name(self) -> str:
        """The text that has to be typed to confirm."""
        return self.channel or self.topic or self.node


@dataclass(frozen=True, slots=True)
class ActionRequest:
    """A valid request."""

    action: str
    targets: tuple[Target, ...]
    params: Mapping[str, Any]

    @property
    def kind(self) -> Kind:
        """The rules of the action."""
        return KINDS[self.action]


def find_kind(fields: Mapping[str, Any]) -> tuple[str, Kind]:
    """Return the action that a request asks for.

    Raises:
        HttpError: 400, there is none of that name.
    """
    action = fields.get("action")
    if not isinstance(action, str) or action not in KINDS:
        raise HttpError(400, f"INVALID_ACTION: must be one of {', '.join(KINDS)}")
    return action, KINDS[action]


def read_action(fields: Mapping[str, Any]) -> ActionRequest:
    """Read the body of a request.

    Raises:
        HttpError: 400 it is wrong, 409 it is not confirmed.
    """
    action, kind = find_kind(fields)
    items = fields.get("targets")
    if not isinstance(items, list) or not items:
        raise HttpError(400, "INVALID_TARGETS: must be a list of at least one")
    if len(items) > MAX_TARGETS:
        raise HttpError(400, f"TOO_MANY_TARGETS: at most {MAX_TARGETS}")
    targets = tuple(_read_target(item, kind) for item in items)
    if len(set(targets)) < len(targets):
        raise HttpError(400, "INVALID_TARGETS: one is there twice")
    params = fields.get("params") or {}
    if not isinstance(params, dict):
        raise HttpError(400, "INVALID_PARAMS: must be an object")
    _check_params(action, params)
    _check_confirmation(kind, targets, fields.get("confirm"))
    return ActionRequest(action, targets, params)


def _read_target(item: object, kind: Kind) -> Target:
    if not isinstance(item, dict) or not item.keys() <= {"topic", "channel", "node"}:
        raise HttpError(400, "INVALID_TARGETS: each is an object of topic, channel and node")
    values = {name: value for name, value in item.items() if value is not None}
    if not all(isinstance(value, str) for value in values.values()):
        raise HttpError(400, "INVALID_TARGETS: names are texts")
    target = Target(**values)
    if kind.has_topic and not is_valid_topic_name(target.topic):
        raise HttpError(400, "INVALID_TOPIC")
    if target.channel and not (kind.has_channel and is_valid_channel_name(target.channel)):
        raise HttpError(400, "INVALID_CHANNEL")
    if target.topic and not kind.has_topic:
        raise HttpError(400, "INVALID_TARGETS: this action is done to nodes")
    if kind.needs_node and not target.node:
        raise HttpError(400, "INVALID_TARGETS: this action needs a node")
    if target.node and not kind.may_name_node:
        raise HttpError(400, "INVALID_TARGETS: this action is done everywhere")
    return target


def _check_confirmation(kind: Kind, targets: tuple[Target, ...], confirm: object) -> None:
    if len(targets) > 1:
        wanted = str(len(targets))
    elif kind.needs_confirmation:
        wanted = targets[0].name
    else:
        return
    if isinstance(confirm, bool) or str(confirm) != wanted:
        raise HttpError(409, "WRONG_CONFIRMATION: type the name, or the number of targets")


def _check_params(action: str, params: Mapping[str, Any]) -> None:
    if action == "move":
        _check_destination(params)
        _check_selection(params)
    elif action == "replay":
        _check_selection(params)
    elif action == "drop":
        _check_ids(params.get("ids"))
    elif action == "set_limits":
        limits = params.get("limits")
        if not isinstance(limits, dict) or len(limits) > 100:
            raise HttpError(400, "INVALID_PARAMS: limits must be an object")
    elif action == "close_client":
        address = params.get("remote_address")
        if not isinstance(address, str) or not 0 < len(address) <= 256:
            raise HttpError(400, "INVALID_PARAMS: remote_address must be a text")
    elif action == "set_log_level":
        try:
            parse_log_level(str(params.get("level")))
        except ValueError as error:
            raise HttpError(400, f"INVALID_PARAMS: {error}") from error


def _check_destination(params: Mapping[str, Any]) -> None:
    to, channel = params.get("to"), params.get("to_channel")
    if not isinstance(to, str) or not is_valid_topic_name(to):
        raise HttpError(400, "INVALID_PARAMS: to must be a topic")
    if channel is not None and not (isinstance(channel, str) and is_valid_channel_name(channel)):
        raise HttpError(400, "INVALID_PARAMS: to_channel must be a channel")


def _check_selection(params: Mapping[str, Any]) -> None:
    """Check which messages are wanted, and how fast."""
    if params.get("ids") is not None:
        _check_ids(params["ids"])
    for name, highest in (("count", MAX_MOVED), ("rate", MAX_RATE)):
        value = params.get(name)
        if value is not None and (type(value) is not int or not 1 <= value <= highest):
            raise HttpError(400, f"INVALID_PARAMS: {name} must be 1 to {highest}")


def _check_ids(ids: object) -> None:
    is_list = isinstance(ids, list) and 0 < len(ids) <= MAX_IDS
    if not is_list or not all(isinstance(each, str) and 0 < len(each) <= 64 for each in ids):  # type: ignore[attr-defined] # a list, as just seen
        raise HttpError(400, f"INVALID_PARAMS: ids must be 1 to {MAX_IDS} ids of messages")
