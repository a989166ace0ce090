"""Random histories of a store, and what a user knows of it while they run.

A step is done on a store and on what is known. After a failure nobody may know whether
a step was done: then there are several things that may be so, and what the store shows
must be one of them.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from lance_spark.errors import StageUnknown, StoreError
from lance_spark.model import Retention
from lance_spark.store import CommitStatus, NamedStage, Store, Topic
from tests.store.kit import batch, read_all

RECORD_BYTES = 45
NAMES = ("one", "two", "three")
PARTITIONS = ("wide/0", "wide/1")
WRITERS = ("v", "w")


class Refused(Exception):
    """A step was not begun: nothing of it is there."""


@dataclass(frozen=True)
class Known:
    """A topic: all that it ever held, and where it starts: not before, not behind."""

    data: bytes = b""
    start: int = 0
    start_max: int = 0
    retention: Retention = field(default_factory=Retention)
    auth: Mapping[str, Any] | None = None

    def add(self, data: bytes) -> Known:
        return replace(self, data=self.data + data)

    def dropped(self) -> Known:
        """Say what retention may leave: anything, once there is too much."""
        size = len(self.data) - self.start
        if not 0 < self.retention.max_bytes < size:
            return self
        return replace(self, start_max=len(self.data))

    def overwritten(self) -> Known:
        return replace(self, start=len(self.data), start_max=len(self.data))


@dataclass(frozen=True)
class State:
    """All that is known of a store."""

    topics: Mapping[str, Known] = field(default_factory=dict)
    offsets: Mapping[tuple[int, str], int] = field(default_factory=dict)
    # The commits that are done, by writer and sequence.
    jobs: frozenset[tuple[str, int]] = frozenset()

    def put(self, name: str, known: Known) -> State:
        return replace(self, topics={**self.topics, name: known})

    def without(self, name: str) -> State:
        topics = {n: known for n, known in self.topics.items() if n != name}
        offsets = {key: at for key, at in self.offsets.items() if key[1] != name}
        return State(topics, offsets, self.jobs)

    def find_difference(self, store: Store) -> str | None:
        """Say what a store shows that is not so; None if all of it is."""
        names = {topic.metadata.name for topic in store.topics()}
        if names != set(self.topics):
            return f"topics {sorted(names)} instead of {sorted(self.topics)}"
        for name, known in self.topics.items():
            topic = find(store, name)
            meta, view = topic.metadata, store.view(topic.metadata.id)
            start, end = view.start.offset, view.end.offset
            if not known.start <= start <= known.start_max or end != len(known.data):
                return f"{name} is [{start}, {end}), not [{known.start}, …)"
            if read_all(topic.log) != known.data[start:]:
                return f"{name} holds something else"
            if view.end.record * RECORD_BYTES != end:
                return f"{name} has {view.end.record} records in {end} bytes"
            if (meta.retention, meta.auth) != (known.retention, known.auth):
                return f"the rules of {name} are {meta.retention}, {meta.auth}"
        for (consumer, name), offset in self.offsets.items():
            found = store.committed_offset(consumer, find(store, name).metadata.id)
            if found != offset:
                return f"offset {found} of {name} instead of {offset}"
        return None


@dataclass(frozen=True)
class Step:
    """One operation: how it is done, and what may be known of it in between.

    `after` gives the states that may be left when it fails, the last one being that of
    success; none at all where it can't succeed.
    """

    text: str
    do: Callable[[Store], object]
    after: Callable[[State], list[State]]
    # What can be asked for again.
    commit: Commit | None = None
    # Whether it is certain that it was not done when the disk refused it. Topics may
    # come, go and change all the same: that is no loss, and no record is doubled.
    is_strict: bool = False


class Commit:
    """Stages for some topics, and their commit."""

    def __init__(
        self, writer: str, sequence: int, sizes: dict[str, int], overwrite: list[str]
    ) -> None:
        self.job = (writer, sequence)
        self.overwrite = overwrite
        self.data = {
            name: batch(f"{writer}{sequence}{name}", size)
            for name, size in sizes.items()
        }
        self.named: list[NamedStage] = []

    def do(self, store: Store) -> None:
        self.stage(store)
        self.ask(store)

    def stage(self, store: Store) -> None:
        """Make the stages, and one that nobody commits."""
        named = []
        try:
            for name, data in self.data.items():
                stage = store.open_stage(name, *self.job)
                store.append_stage(stage, 1, data)
                named.append(NamedStage(stage, 1, len(data)))
            loser = store.open_stage("one", *self.job)
            store.append_stage(loser, 1, batch("loser"))
        except StoreError as error:
            raise Refused from error
        self.named = named

    def ask(self, store: Store) -> CommitStatus:
        """Commit, for the first time or again."""
        done = store.commit_stages(*self.job, self.named, self.overwrite)
        assert done.status is not CommitStatus.STALE
        return done.status

    def after(self, state: State) -> list[State]:
        for name in {*self.data, *self.overwrite}:
            known = state.topics.get(name, Known())
            if name in self.overwrite:
                known = known.overwritten()
            state = state.put(name, known.add(self.data.get(name, b"")))
        return [replace(state, jobs=state.jobs | {self.job})]

    def settle(self, store: Store, states: list[State]) -> list[State]:
        """Ask again for a commit whose outcome is not known; say what is so then."""
        try:
            done = self.ask(store)
        except StageUnknown:
            # Its stages are gone, and it was not done.
            return [s for s in states if self.job not in s.jobs]
        if done is CommitStatus.REPEATED:
            return [s for s in states if self.job in s.jobs]
        return [self.after(s)[-1] for s in states if self.job not in s.jobs]


def find(store: Store, name: str) -> Topic:
    """Find a topic that a step needs."""
    topic = store.find_topic(name)
    if topic is None:
        raise Refused(f"there is no topic {name}")
    return topic


class Historian:
    """Makes steps at random, such as make sense if all before them were done."""

    def __init__(self, seed: str) -> None:
        self._rng = random.Random(seed)
        self._state = State()
        self._sequences = dict.fromkeys(WRITERS, 0)
        self._count = 0

    def tell(self, steps: int) -> Iterator[Step]:
        """Give so many steps, and one of each kind that has a file of its own."""
        first = [self._create, self._append, self._offset, self._commit, self._append]
        kinds = [
            *[self._append] * 5,
            *[self._append_together] * 2,
            *[self._commit] * 4,
            *[self._retain, self._create, self._offset, self._auth, self._abort],
            *[self._delete, self._create_wide, self._delete_wide],
        ]
        for number in range(steps):
            make = first[number] if number < len(first) else self._rng.choice(kinds)
            step = make() or self._create() or self._append()
            assert step is not None
            done = step.after(self._state)
            if done:
                self._state = done[-1]
                yield step

    def _pick(self, partitions: tuple[str, ...] = ()) -> str | None:
        names = {*NAMES, *partitions}.intersection(self._state.topics)
        return self._rng.choice(sorted(names) or [None])

    def _batch(self) -> bytes:
        self._count += 1
        return batch(str(self._count), self._rng.choice([1, 3, 3, 30]))

    def _create(self) -> Step | None:
        free = sorted(set(NAMES) - set(self._state.topics))
        if not free:
            return None
        name = free[0]
        return Step(
            f"create {name}",
            lambda store: store.create_topic(name),
            lambda s: [] if name in s.topics else [s.put(name, Known())],
        )

    def _create_wide(self) -> Step:
        def after(state: State) -> list[State]:
            if PARTITIONS[0] in state.topics:
                return []
            return [state.put(PARTITIONS[0], Known()).put(PARTITIONS[1], Known())]

        text = "create a topic with partitions"
        return Step(text, lambda store: store.create_topics({"wide": 2}), after)

    def _delete_wide(self) -> Step:
        def do(store: Store) -> None:
            topics = [find(store, name) for name in PARTITIONS]
            store.delete_topics([topic.metadata.id for topic in topics])

        def after(state: State) -> list[State]:
            if PARTITIONS[0] not in state.topics:
                return []
            return [state.without(PARTITIONS[0]).without(PARTITIONS[1])]

        return Step("delete a topic with partitions", do, after)

    def _change(
        self, text: str, do: Callable[[Store, Topic], object], *after: Any
    ) -> Step | None:
        """Make a step about one topic; `after` says what becomes of it."""
        name = self._pick(PARTITIONS if text.startswith("append") else ())
        if name is None:
            return None

        def then(state: State) -> list[State]:
            known = state.topics.get(name)
            return [] if known is None else [state.put(name, f(known)) for f in after]

        return Step(f"{text} {name}", lambda store: do(store, find(store, name)), then)

    def _append(self) -> Step | None:
        data = self._batch()
        step = self._change(
            "append to",
            lambda store, topic: store.append(topic.metadata.id, data),
            lambda known: known.add(data),
        )
        return step and replace(step, is_strict=True)

    def _append_together(self) -> Step | None:
        parts = [self._batch() for _ in range(3)]

        def do(store: Store, topic: Topic) -> None:
            for data in parts:
                appended = store.append(topic.metadata.id, data, wait=False)
            store.wait_durable(topic.metadata.id, appended)

        def first(count: int) -> Callable[[Known], Known]:
            return lambda known: known.add(b"".join(parts[:count]))

        return self._change("append together to", do, *map(first, (1, 2, 3)))

    def _retain(self) -> Step | None:
        retention = Retention(max_bytes=self._rng.choice([0, 500, 2000]))

        def do(store: Store, topic: Topic) -> None:
            store.set_retention(topic.metadata.id, retention)
            store.maintain()

        def is_set(known: Known) -> Known:
            return replace(known, retention=retention)

        # Maintenance is for all topics.
        step = self._change("retain", do, is_set, lambda k: is_set(k).dropped())
        if step is None:
            return None

        def after(state: State) -> list[State]:
            return [
                replace(s, topics={n: k.dropped() for n, k in s.topics.items()})
                for s in step.after(state)
            ]

        return replace(step, after=after)

    def _auth(self) -> Step | None:
        rules = {"write": [f"writer{self._rng.randrange(9)}"]}
        return self._change(
            "guard",
            lambda store, topic: store.set_auth(topic.metadata.id, rules),
            lambda known: replace(known, auth=rules),
        )

    def _offset(self) -> Step | None:
        name = self._pick()
        if name is None:
            return None
        consumer, offset = self._rng.randrange(2), len(self._state.topics[name].data)
        return Step(
            f"commit an offset of {name}",
            lambda s: s.commit_offset(consumer, find(s, name).metadata.id, offset),
            lambda s: (
                [replace(s, offsets={**s.offsets, (consumer, name): offset})]
                if name in s.topics
                else []
            ),
        )

    def _delete(self) -> Step | None:
        name = self._pick()
        if name is None or len(self._state.topics) < 2:
            return None
        return Step(
            f"delete {name}",
            lambda store: store.delete_topic(find(store, name).metadata.id),
            lambda s: [s.without(name)] if name in s.topics else [],
        )

    def _commit(self) -> Step | None:
        rng, writer = self._rng, self._rng.choice(WRITERS)
        self._sequences[writer] += 1
        names = rng.sample(NAMES, rng.randrange(1, 3))
        sizes = {name: rng.choice([1, 4, 25]) for name in names}
        overwrite = rng.sample(NAMES, 1) if rng.random() < 0.3 else []
        made = Commit(writer, self._sequences[writer], sizes, overwrite)
        text = f"commit {made.job} to {names}, overwriting {overwrite}"
        return Step(text, made.do, made.after, made, is_strict=True)

    def _abort(self) -> Step | None:
        writer = self._rng.choice(WRITERS)
        job = (writer, self._sequences[writer] + 1)

        def do(store: Store) -> None:
            stage = store.open_stage("two", *job)
            store.append_stage(stage, 1, batch("aborted"))
            store.abort_stages(*job)

        return Step(f"abort {job}", do, lambda state: [state])
