"""Actions of /api/v2: changes of many queues on many nodes, with an outcome for each.

A request is checked, confirmed and written down, then runs by itself; viewers ask how far it is.
Outcomes are there from the start, as waiting, so that nothing is done that was not announced.
"""

import asyncio
import itertools
import json
import secrets
import time
from collections import OrderedDict
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, Final

from nsqadmin.access.audit import Entry
from nsqadmin.access.changes import Changes
from nsqadmin.access.roles import Caller, Right
from nsqadmin.api.action_requests import ActionRequest, Target, find_kind, read_action
from nsqadmin.api.replies import ApiRouter, json_reply, read_object
from nsqadmin.cluster.collector import Collector
from nsqadmin.cluster.commands import QUEUE_VERBS, Commands, Outcome
from nsqadmin.cluster.discovery import Discovery, Producer
from nsqadmin.cluster.upstream import clean
from nsqadmin.cluster.view import Node
from nsqd.http.server import HttpError, Request, Response
from nsqd.runtime.event_loop import end_task, start_task

MAX_RUNNING: Final = 32
MAX_KEPT: Final = 200
MAX_OUTCOMES: Final = 20_000
# How many messages one call moves, so that progress shows and a stop is soon.
MOVE_CHUNK: Final = 500
# The most that nsqd takes in one call.
MAX_CALL_COUNT: Final = 10_000
# The extension that a node must have for an action.
_EXTENSIONS: Final = {
    "move": "move",
    "replay": "replay",
    "drop": "drop",
    "drain": "drain",
    "set_limits": "limits",
    "close_client": "client_close",
}


@dataclass(slots=True)
class Step:
    """One thing to do, and how it ended."""

    target: Target
    daemon: str
    is_lookupd: bool = False
    node: Producer | None = None
    state: str = "waiting"  # then done or failed
    text: str = ""
    moved: int | None = None
    left: int | None = None
    # How many dead letters can't go back, by the node's reason.
    kept: dict[str, int] | None = None

    def as_json(self) -> dict[str, object]:
        """Return its members."""
        members: dict[str, object] = {}
        if self.target.topic:
            members["topic"] = self.target.topic
        if self.target.channel:
            members["channel"] = self.target.channel
        members |= {
            "lookupd" if self.is_lookupd else "node": self.daemon,
            "state": self.state,
            "text": self.text,
        }
        if self.moved is not None:
            members |= {"moved": self.moved, "left": self.left}
        if self.kept:
            members["kept"] = self.kept
        return members

    def end(self, error: str | None) -> None:
        """Note how it ended."""
        self.state = "done" if error is None else "failed"
        self.text = error or "done"


@dataclass(slots=True)
class Action:
    """An action under way, or done."""

    id: str
    request: ActionRequest
    user: str
    started_ms: int
    steps: list[Step]
    entry: Entry
    is_stopped: bool = False
    task: asyncio.Task[None] | None = field(default=None, repr=False)

    @property
    def is_running(self) -> bool:
        """Whether anything is still to be done."""
        return self.task is None or not self.task.done()

    def as_json(self) -> dict[str, object]:
        """Return how far it is."""
        states = [step.state for step in self.steps]
        return {
            "id": self.id,
            "action": self.request.action,
            "user": self.user,
            "state": "running" if self.is_running else "done",
            "started_ms": self.started_ms,
            "time_ms": time.time_ns() // 1_000_000,
            "counts": {name: states.count(name) for name in ("waiting", "done", "failed")},
            "moved": sum(step.moved or 0 for step in self.steps),
            "outcomes": [step.as_json() for step in self.steps],
        }


class ActionRoutes:
    """The routes, and the actions of late."""

    def __init__(
        self,
        collector: Collector,
        discovery: Discovery,
        commands: Commands,
        changes: Changes,
    ) -> None:
        self._collector = collector
        self._discovery = discovery
        self._commands = commands
        self._changes = changes
        self._actions: OrderedDict[str, Action] = OrderedDict()

    def add_to(self, router: ApiRouter) -> None:
        """Add the routes."""
        router.add("POST", "/api/v2/actions", self._start, Right.VIEW)
        router.add("GET", "/api/v2/actions/:id", self._show, Right.VIEW)
        router.add("DELETE", "/api/v2/actions/:id", self._stop, Right.OPERATE)

    async def close(self) -> None:
        """Stop the actions that run."""
        for action in self._actions.values():
            if action.task is not None and not action.task.done():
                await end_task(action.task)

    async def _start(self, request: Request, caller: Caller) -> Response:
        fields = read_object(request)
        name, kind = find_kind(fields)
        self._changes.demand(request, caller, kind.right, name)
        wanted = read_action(fields)
        if sum(action.is_running for action in self._actions.values()) >= MAX_RUNNING:
            raise HttpError(429, "TOO_MANY_ACTIONS")
        steps = await self._plan(wanted)
        entry = self._changes.new_entry(request, caller, name)
        first = wanted.targets[0]
        entry.topic, entry.channel, entry.node = first.topic, first.channel, first.node
        entry.target_count = len(wanted.targets)
        await self._changes.trail.begin(entry)
        for target in wanted.targets:
            self._changes.notify(
                request,
                _notification(name, target),
                topic=target.topic,
                channel=target.channel,
                node=target.node,
            )
        now_ms = time.time_ns() // 1_000_000
        action = Action(secrets.token_hex(8), wanted, caller.user, now_ms, steps, entry)
        self._keep(action)
        action.task = start_task(self._run(action), f"action {name}")
        return json_reply({"id": action.id}, 202)

    async def _show(self, request: Request, _caller: Caller) -> Response:
        return json_reply(self._find(request).as_json())

    async def _stop(self, request: Request, caller: Caller) -> Response:
        action = self._find(request)
        self._changes.demand(request, caller, action.request.kind.right, "stop")
        action.is_stopped = True
        return json_reply(action.as_json())

    def _find(self, request: Request) -> Action:
        action = self._actions.get(request.params[0])
        if action is None:
            raise HttpError(404, "ACTION_NOT_FOUND")
        return action

    def _keep(self, action: Action) -> None:
        while len(self._actions) >= MAX_KEPT:
            oldest = next(key for key, each in self._actions.items() if not each.is_running)
            del self._actions[oldest]
        self._actions[action.id] = action

    # Planning.

    async def _plan(self, wanted: ActionRequest) -> list[Step]:
        """Return all that has to be done.

        Raises:
            HttpError: 404, an unknown node; 400, too much.
        """
        steps: list[Step] = []
        for target in wanted.targets:
            steps += await self._plan_target(wanted.action, target)
            if len(steps) > MAX_OUTCOMES:
                raise HttpError(400, f"TOO_MANY_TARGETS: more than {MAX_OUTCOMES} changes")
        return steps

    async def _plan_target(self, action: str, target: Target) -> list[Step]:
        nodes = await self._find_nodes(action, target)
        lookupds: Iterable[str] = ()
        if action in ("create", "delete", "tombstone") and not (action == "delete" and target.node):
            lookupds = map(str, self._discovery.lookupds)
        steps = [Step(target, name, is_lookupd=True) for name in lookupds]
        steps += [Step(target, node.name, node=node.producer) for node in nodes]
        extension = _EXTENSIONS.get(action)
        for step, node in zip(steps[len(steps) - len(nodes) :], nodes, strict=True):
            lacks = node.extensions is not None and extension not in node.extensions
            if extension is not None and lacks:
                step.end(f"NOT_SUPPORTED: this nsqd cannot {action.replace('_', ' ')}")
        if not steps:
            nothing = Step(target, "", is_lookupd=True)
            nothing.end("TOPIC_NOT_FOUND: no node has this topic")
            steps.append(nothing)
        return steps

    async def _find_nodes(self, action: str, target: Target) -> list[Node]:
        view = self._collector.view
        if target.node:
            node = view.nodes.get(target.node)
            if node is None or node.gone_at is not None:
                raise HttpError(404, "NODE_NOT_FOUND")
            return [node]
        everybody = [node for _, node in sorted(view.nodes.items()) if node.gone_at is None]
        if action == "create":
            if not self._discovery.has_lookupds:
                return everybody
            if not target.channel:
                return []
        having = {node.name for node in view.nodes_with(target.topic)}
        having |= {node.name for node in everybody if target.topic in node.producer.topics}
        if not having:
            # It may have been made since the last round.
            found = await self._discovery.find_producers(target.topic)
            having = {producer.name for producer in found.value or ()}
        return [node for node in everybody if node.name in having]

    # Running.

    async def _run(self, action: Action) -> None:
        try:
            groups = itertools.groupby(action.steps, key=lambda step: step.target)
            await asyncio.gather(
                *(self._run_target(action, target, list(steps)) for target, steps in groups)
            )
        finally:
            for step in action.steps:
                if step.state == "waiting":
                    step.end("stopped")
            entry = action.entry
            entry.outcomes = [_note(step) for step in action.steps]
            failed = sum(step.state == "failed" for step in action.steps)
            text = f"{len(action.steps) - failed} done, {failed} failed"
            await self._changes.trail.finish(entry, "failed" if failed else "done", text)
            self._collector.hurry()

    async def _run_target(self, action: Action, target: Target, steps: list[Step]) -> None:
        """Make the action on one target: nsqlookupds first, so that no consumer comes back."""
        name = action.request.action
        lookupds = {step.daemon: step for step in steps if step.is_lookupd and step.daemon}
        if lookupds and not action.is_stopped:
            for outcome in await self._tell_lookupds(name, target, steps):
                error = outcome.error
                step = lookupds[outcome.daemon]
                if step.state != "failed":
                    step.end(error)
        await asyncio.gather(
            *(
                self._run_step(action, step)
                for step in steps
                if step.node is not None and step.state == "waiting"
            )
        )

    async def _tell_lookupds(self, name: str, target: Target, steps: list[Step]) -> list[Outcome]:
        commands = self._commands
        if name == "create":
            return await commands.create_in_lookupds(target.topic, target.channel)
        if name == "delete":
            return await commands.delete_in_lookupds(target.topic, target.channel)
        node = next(step.node for step in steps if step.node is not None)
        return await commands.tombstone(node, target.topic)

    async def _run_step(self, action: Action, step: Step) -> None:
        if action.is_stopped:
            step.end("stopped")
            return
        outcome = await self._do(action, step)
        step.end(outcome.error)

    async def _do(self, action: Action, step: Step) -> Outcome:
        """Make the action on one node."""
        name = action.request.action
        node, target, commands = step.node, step.target, self._commands
        assert node is not None
        if name in QUEUE_VERBS:
            return await commands.change_queue(node, name, target.topic, target.channel)
        if name == "create":
            outcome = await commands.create(node, target.topic)
            if target.channel and outcome.error is None:
                outcome = await commands.create(node, target.topic, target.channel)
            return outcome
        if name == "tombstone":
            return await commands.change_queue(node, "delete", target.topic)
        if name in ("move", "replay"):
            return await self._move(action, step)
        return await self._do_ours(action.request, node, target)

    async def _do_ours(self, request: ActionRequest, node: Producer, target: Target) -> Outcome:
        """Make an action that only our nodes offer."""
        name, params, commands = request.action, request.params, self._commands
        if name == "drain":
            return await commands.post(node, "/drain")
        if name == "set_limits":
            return await commands.set_limits(node, target.topic, params["limits"])
        if name == "set_log_level":
            return await commands.set_option(node, "log_level", str(params["level"]))
        if name == "close_client":
            address = params["remote_address"]
            return await commands.post(node, "/client/close", remote_address=address)
        assert name == "drop"
        path = f"/{_kind(target)}/drop"
        return await commands.post(node, path, _encode_ids(params), **_query(target))

    async def _move(self, action: Action, step: Step) -> Outcome:
        """Move or replay messages, some hundred at a time, until all or enough were looked at.

        Dead letters that can't go back stay at the front of their queue: each call passes them by.
        """
        params, node, target = action.request.params, step.node, step.target
        assert node is not None
        wanted, rate = params.get("count"), params.get("rate")
        path = f"/{_kind(target)}/{action.request.action}"
        query = _query(target)
        query |= {name: params[name] for name in ("to", "to_channel") if params.get(name)}
        step.moved = kept = 0
        while True:
            chunk = MOVE_CHUNK if wanted is None else min(MOVE_CHUNK, wanted - step.moved - kept)
            if rate is not None:
                chunk = min(chunk, rate)
            body = _encode_ids(params) if params.get("ids") else b""
            count = {} if body else {"count": str(min(chunk + kept, MAX_CALL_COUNT))}
            outcome = await self._commands.post(node, path, body, **query, **count)
            if outcome.error is not None:
                return outcome
            moved, step.left, step.kept, refusal = _read_moved(outcome.body)
            step.moved += moved
            kept_before, kept = kept, sum(step.kept.values())
            if refusal:
                return Outcome(outcome.daemon, refusal)
            is_enough = wanted is not None and step.moved + kept >= wanted
            is_stuck = not moved and kept <= kept_before
            if body or is_stuck or step.left <= kept or is_enough or action.is_stopped:
                return outcome
            if rate is not None:
                await asyncio.sleep(moved / rate)


def _notification(action: str, target: Target) -> str:
    """Return the name that the Go nsqadmin has for an action, or ours."""
    if action == "tombstone":
        return "tombstone_topic_producer"
    if action in QUEUE_VERBS or action == "create":
        return f"{action}_{_kind(target)}"
    return action


def _kind(target: Target) -> str:
    return "channel" if target.channel else "topic"


def _query(target: Target) -> dict[str, str]:
    return {"topic": target.topic} | ({"channel": target.channel} if target.channel else {})


def _encode_ids(params: Any) -> bytes:
    return json.dumps({"ids": params["ids"]}).encode()


def _read_moved(body: bytes) -> tuple[int, int, dict[str, int], str]:
    """Return how many were moved and are left, what is kept, and why no more were moved."""
    try:
        found = json.loads(body)
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, dict):
        return 0, 0, {}, "an answer that is no object"
    values = [found.get(name) for name in ("moved", "left")]
    moved, left = (value if type(value) is int and value >= 0 else 0 for value in values)
    items = found.get("kept")
    kept = {
        clean(reason): count
        for reason, count in (items.items() if isinstance(items, dict) else ())
        if type(count) is int and count > 0
    }
    return moved, left, kept, clean(str(found.get("message", "")))


def _note(step: Step) -> dict[str, str]:
    noted = {"node": step.daemon, "text": step.text}
    if step.target.topic:
        noted["topic"] = step.target.topic
    if step.target.channel:
        noted["channel"] = step.target.channel
    return noted
