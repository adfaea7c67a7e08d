"""The faults: a replacement in one file each, and the tests that catch it."""

from dataclasses import dataclass

OWNERSHIP, SOURCE = "archiver/ingest/ownership.py", "archiver/ingest/kafka_source.py"
STATE, ARCHIVER = "archiver/ingest/partition_state.py", "archiver/ingest/partition_archiver.py"
TESTS = "tests/archiver/ingest"
OF_OWNERSHIP, OF_SOURCE = f"{TESTS}/test_ownership.py", f"{TESTS}/test_kafka_source.py"
DIVERGED, OF_DIVERGED = ("archiver/maintain/repair/diverged.py", "tests/archiver/maintain/repair/test_diverged.py")
RECOVERY, OF_RECOVERY = "archiver/commit/recovery.py", "tests/archiver/commit/test_recovery.py"
TRANSLATION, OF_TRANSLATION = "replayer/groups/planning.py", "tests/replayer/groups/test_translation.py"
OF_LETTERS = f"{TESTS}/test_dead_letters.py"
OF_ARCHIVER, OF_IDENTITY = f"{TESTS}/test_partition_archiver.py", f"{TESTS}/test_partition_archiver_full.py"


@dataclass(frozen=True)
class Mutant:
    """A fault: `old` stands once in `path`, and `new` in its place is wrong. One of the tests fails then."""

    name: str
    path: str
    old: str
    new: str
    tests: tuple[str, ...]


MUTANTS = (
    Mutant(
        "a claim is used although its partition is no longer assigned",
        OWNERSHIP,
        "            if partition not in self._assigned or partition in self._retry_at:\n                continue",
        "",
        (f"{OF_OWNERSHIP}::test_a_claim_of_a_partition_that_left_meanwhile_is_not_used",),
    ),
    Mutant(
        "messages of a partition that was revoked while they were polled become a batch",
        SOURCE,
        "        self._batching.forget(self._batching.partitions - self._consuming)\n",
        "",
        (f"{OF_SOURCE}::test_messages_of_a_partition_that_left_in_the_same_call_are_dropped",),
    ),
    Mutant(
        "batched messages of a revoked partition are kept until it is consumed again",
        SOURCE,
        "        self._consuming -= leaving\n        self._batching.forget(leaving)\n",
        "        self._consuming -= leaving\n",
        (f"{OF_SOURCE}::test_what_was_batched_before_a_partition_left_does_not_come_once_it_is_back",),
    ),
    Mutant(
        "progress is queued while a commit runs",
        STATE,
        "    if state.has_committer or state.pending or not is_new:\n",
        "    if not is_new:\n",
        (f"{OF_ARCHIVER}::test_progress_is_not_queued_beside_a_commit",),
    ),
    Mutant(
        "a partition that was lost is not flushed",
        OWNERSHIP,
        "                if seconds > 0:\n                    archiver.offer(Order.FLUSH)\n",
        "",
        (f"{OF_OWNERSHIP}::TestLosing",),
    ),
    Mutant(
        "a partition is claimed while its flush is under way",
        OWNERSHIP,
        "        if partition in self._leaving or partition in self._claims:\n",
        "        if partition in self._claims:\n",
        (f"{OF_OWNERSHIP}::TestLosing::test_what_was_fetched_is_archived_before_the_partition_is_claimed_again",),
    ),
    Mutant(
        "a loss writes although nothing in the store keeps writers apart",
        OWNERSHIP,
        "0.0 if config.single_writer else config.grace",
        "config.grace",
        (f"{OF_OWNERSHIP}::TestLosing::test_nothing_is_written_where_the_store_keeps_no_writers_apart",),
    ),
    Mutant(
        "no such topic, or no answer, counts as another topic",
        "archiver/ingest/topics.py",
        "    return None if told is None else False\n",
        "    return False\n",
        (f"{OF_IDENTITY}::test_records_are_committed_unless_the_topic_is_known_to_be_another",),
    ),
    Mutant(
        "the record at the confirmed position goes into the old topic's folder",
        "archiver/ingest/chunk_builder.py",
        'np.searchsorted(batch.column("offset").to_numpy(), end)',
        'np.searchsorted(batch.column("offset").to_numpy(), end, side="right")',
        (f"{OF_IDENTITY}::TestCreatedAgain",),
    ),
    Mutant(
        "what is fetched while the topic's id is asked for counts as confirmed",
        OWNERSHIP,
        "            partition.told(answers.get(topic), position)\n",
        "            partition.told(answers.get(topic), partition.state.fetched)\n",
        (f"{TESTS}/test_kafka_cluster.py",),
    ),
    Mutant(
        "a client that gave up on a partition costs what it had fetched before",
        ARCHIVER,
        "            case PartitionFailed(error=error):\n                self._stop_at(self._state.position, error)\n",
        "            case PartitionFailed(error=error):\n                raise error\n",
        (f"{OF_IDENTITY}::test_what_was_fetched_before_the_client_gave_up_is_archived",),
    ),
    Mutant(
        "a gap is committed before its record is acknowledged",
        ARCHIVER,
        "                self._dead_letters.settle(content.next_offset)\n",
        "                pass\n",
        (f"{OF_LETTERS}::test_nothing_that_leaves_a_record_out_is_committed_before_its_topic_has_it",),
    ),
    Mutant(
        "what its topic did not take is not sent again",
        "archiver/ingest/dead_letters.py",
        "                self._refused[offset] = record, error, failure\n                self._failure = failure\n",
        "                self._failure = failure\n",
        (f"{OF_LETTERS}::test_what_was_not_acknowledged_is_a_failure_and_is_sent_again",),
    ),
    Mutant(
        "gc deletes an orphan that reaches into a gap",
        "archiver/maintain/garbage.py",
        "any(gap.end > found.name.number for chain",
        "any(gap.start > found.name.number for chain",
        ("tests/archiver/maintain/test_garbage.py::TestGaps",),
    ),
    Mutant(
        "an answer that was lost is taken for another writer's object",
        "archiver/commit/commit.py",
        "                return head.attempt == attempt\n",
        "                return False\n",
        ("tests/archiver/commit/test_archive.py",),
    ),
    Mutant(
        "a name that is taken is not looked at",
        "archiver/commit/commit.py",
        "        was_asked, is_asked = is_asked, True\n",
        "        was_asked = is_asked\n",
        ("tests/archiver/commit/test_archive.py",),
    ),
    Mutant(
        "a refusal of the store stops a running service's partition",
        "archiver/errors.py",
        "    errors.AccessDenied: _ATTENDED | {Situation.SERVING: Next.AGAIN},\n",
        "    errors.AccessDenied: _ATTENDED | {Situation.SERVING: Next.STOP},\n",
        (f"{OF_OWNERSHIP}::TestRefusals",),
    ),
    Mutant(
        "a chunk does not end however many gaps it has",
        "archiver/ingest/chunk_builder.py",
        "        or chunk.num_gaps >= MAX_GAPS\n",
        "",
        (f"{OF_ARCHIVER}::test_chunks_with_many_skipped_records_end_and_fold",),
    ),
    Mutant(
        "a writer takes a claim of its own again that another writer has made meanwhile",
        "archiver/commit/recovery.py",
        "    if held is None or held.marker.writer != writer:\n",
        "    if held is None:\n",
        (f"{OF_IDENTITY}::test_after_another_writers_claim_such_a_chunk_is_dropped",),
    ),
    Mutant(
        "a named topic that is missing keeps the others back",
        "archiver/ingest/topics.py",
        "    if missing and not topics:\n",
        "    if missing:\n",
        (f"{TESTS}/test_topics.py::test_named_topics_that_are_missing_keep_nothing_else_back",),
    ),
    Mutant(
        "a partition whose commit hangs is not paused",
        "archiver/ingest/backpressure.py",
        " if exceeds(state, waiting, buffer if is_tight else None)}\n",
        " if False}\n",
        (f"{TESTS}/test_backpressure_budgets.py::test_a_partition_whose_commit_hangs_is_paused_alone",),
    ),
    Mutant(
        "a chunk that was cut where the disk was full claims the offsets of the blocks that it has not",
        "archiver/ingest/chunk_builder.py",
        "        finished = self._finished(end.offset + 1, end)\n",
        "        finished = self._finished(rest._last.offset + 1, end)\n",
        (f"{TESTS}/test_partition_archiver_full.py",),
    ),
    Mutant(
        "an id that was learnt later does not get into the marker",
        "archiver/commit/recovery.py",
        "held.marker if held.marker.topic_id is not None else replace(held.marker, topic_id=identity.topic_id)",
        "held.marker",
        ("tests/archiver/commit/test_recovery.py::TestIdsThatWereNotKnown",),
    ),
    Mutant(
        "two archives share a group",
        "archiver/ingest/assignment.py",
        "        if owner != archive_id:\n",
        "        if archive_id is None:\n",
        (f"{TESTS}/test_topics.py",),
    ),
    Mutant(
        "an orphan of another topic is salvaged",
        "archiver/maintain/repair/salvage.py",
        "    if index.topic_id != marker.topic_id:\n",
        "    if index.topic_id is None:\n",
        ("tests/archiver/maintain/repair/test_salvage.py::test_an_orphan_of_another_or_an_unknown_topic_is_refused",),
    ),
    Mutant(
        "a partition that diverged goes on from the end of a chunk, not from behind its last record",
        DIVERGED,
        "            return entry.last_offset + 1, None\n",
        "            return entry.next_offset, None\n",
        (f"{OF_DIVERGED}::test_from_the_last_record_and_never_from_the_end_of_a_chunk",),
    ),
    Mutant(
        "a record at the same offset counts as the archived one, whatever it holds",
        DIVERGED,
        "        if found is not None and _is_archived(place, entry, found):\n",
        "        if found is not None:\n",
        (f"{OF_DIVERGED}::test_it_continues_after_the_newest_chunk_whose_last_record_the_log_holds",),
    ),
    Mutant(
        "a marker with a successor is claimed",
        "archiver/commit/recovery.py",
        "    if marker.successor is not None:\n",
        "    if marker.successor == str(identity.keys.folder):\n",
        (OF_DIVERGED,),
    ),
    Mutant(
        "a refusal stops a partition of a running service for good",
        "archiver/errors.py",
        "    errors.AccessDenied: _ATTENDED | {Situation.SERVING: Next.AGAIN},\n",
        "    AccessDenied: _ATTENDED,\n",
        (f"{OF_OWNERSHIP}::TestRefusals::test_a_running_service_waits_shows_it_and_loses_nothing",),
    ),
    Mutant(
        "a wait of minutes goes on while the grace runs out",
        OWNERSHIP,
        "            self._hurried.setdefault(partition, threading.Event()).set()\n",
        "",
        (f"{OF_OWNERSHIP}::TestRefusals::test_a_wait_of_minutes_does_not_outlast_the_grace",),
    ),
    Mutant(
        "a file whose fsync failed is synced again, where it has to be copied",
        "blockgz/store/local.py",
        "            self._sync_failed = True\n",
        "",
        ("tests/contract/test_writer_store.py::test_a_file_whose_fsync_failed_is_copied_when_it_is_offered_again",),
    ),
    Mutant(
        "what was written of a block that did not fit stays in the buffer",
        "archiver/ingest/chunk_builder.py",
        "                self._is_torn = True\n",
        "",
        (f"{TESTS}/test_chunk_builder.py::test_a_block_that_fitted_in_part_is_cut_off_and_may_be_written_again",),
    ),
    Mutant(
        "a claim goes on although no record and no id say that the log is the archived one",
        RECOVERY,
        "    if not isinstance(newest, Record):  # no record says whose log it is\n",
        "    if gap is not None:\n",
        (f"{OF_RECOVERY}::TestLogsThatNoRecordSpeaksFor",),
    ),
    Mutant(
        "a gap is recorded although the log may be another topic's",
        RECOVERY,
        "    if not isinstance(newest, Record):  # no record says whose log it is\n",
        "    if not isinstance(newest, Record) and gap is None:\n",
        (f"{OF_RECOVERY}::TestLogsThatNoRecordSpeaksFor",),
    ),
    Mutant(
        "a partition diverges although the log may be another topic's",
        RECOVERY,
        "            yield from _confirm_topic(identity, held.marker)\n            raise\n",
        "            raise\n",
        (f"{OF_RECOVERY}::TestLogsThatNoRecordSpeaksFor",),
    ),
    Mutant(
        "the id that the folder names is forgotten where the cluster is silent",
        OWNERSHIP,
        "        known_id = archived_id if topic_id is None else topic_id\n",
        "        known_id = topic_id\n",
        (f"{OF_OWNERSHIP}::test_an_id_that_is_not_reported_is_the_folders",),
    ),
    Mutant(
        "a look at nothing makes the cluster count as one that answers",
        "archiver/ingest/topics.py",
        "        if not topics:\n            return NOTHING_TOLD\n",
        "        if not topics:\n            self._silent_until = None\n            return NOTHING_TOLD\n",
        (f"{TESTS}/test_kafka_cluster.py::test_a_look_at_nothing_does_not_make_the_cluster_answer",),
    ),
    Mutant(
        "a batch that was postponed stands before the order to write again",
        STATE,
        "            return self._with(inbox=(event, *(each for each in self.inbox if each != event)))\n",
        "            return self if event in self.inbox else self._with(inbox=(event, *self.inbox))\n",
        (
            f"{TESTS}/test_partition_archiver_full.py::test_writing_again_comes_before_a_batch_that_was_postponed_behind_it",
        ),
    ),
    Mutant(
        "records behind the newest archived one are passed over where the log was written again",
        RECOVERY,
        "    while found is not None and found < end:\n",
        "    while found is not None and found < start:\n",
        (f"{OF_RECOVERY}::TestALogThatWasWrittenAgainBehindTheNewestRecord",),
    ),
    Mutant(
        "that the topic has another id is forgotten where the cluster is silent",
        "archiver/ingest/topics.py",
        "        return before if now is None and before != topic_id else now\n",
        "        return now\n",
        (
            f"{TESTS}/test_topics.py::test_an_id_that_was_told_since_the_claim_is_remembered_where_the_cluster_is_silent",
        ),
    ),
    Mutant(
        "a drain waits for an end that its log lost",
        ARCHIVER,
        "        if self._state.end_offset is not None and end < self._state.end_offset:\n",
        "        if self._state.end_offset is not None and end < 0:\n",
        (f"{OF_ARCHIVER}::test_a_log_that_ends_below_the_end_offset_is_looked_at_again",),
    ),
    Mutant(
        "a group continues behind a record that it has not read",
        TRANSLATION,
        'position, side="right")',
        'position - 1, side="right") + 1',
        (f"{OF_TRANSLATION}::test_random_jobs_and_positions_against_brute_force",),
    ),
    Mutant(
        "a group of several partitions continues where the last of them does",
        TRANSLATION,
        "    offset = min(found.values())\n",
        "    offset = max(found.values())\n",
        (f"{OF_TRANSLATION}::test_random_jobs_and_positions_against_brute_force",),
    ),
    Mutant(
        "records of a run that the archive lost are counted as there",
        TRANSLATION,
        "        return below if below + above == run.records else None\n",
        "        return below\n",
        (f"{OF_TRANSLATION}::test_an_archive_that_lost_records_of_a_run_is_refused",),
    ),
    Mutant(
        "positions are set before what was there is kept",
        "replayer/groups/applying.py",
        "        self._add(_Change(topic=plan.topic, topic_id=plan.topic_id, at=now_ms, groups=kept))\n",
        "",
        ("tests/replayer/groups/test_planning.py::test_after_a_crash_between_two_groups_all_is_set_back",),
    ),
    Mutant(
        "a replay that ends while somebody looks is told as interrupted",
        "replayer/replay/jobs/control.py",
        "was_running or is_running(locks, job)",
        "is_running(locks, job)",
        ("tests/replayer/replay/jobs/test_log.py::test_a_run_that_ends_while_somebody_looks_was_not_interrupted",),
    ),
)
