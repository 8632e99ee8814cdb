"""The tables of runs, as statements for the migrations; never edited after a release."""

RUNS = (
    """
    create table kernels (
        hash text primary key,
        source text not null,
        parent text,
        record text not null
    ) strict
    """,
    """
    create table runs (
        id text primary key,
        state text not null,
        record text not null,
        result text,
        created_at text not null
    ) strict
    """,
    """
    create table attempts (
        id integer primary key,
        run text not null references runs(id),
        kernel text not null references kernels(hash),
        move text not null,
        skill text not null,
        status text not null,
        record text not null,
        unique (run, kernel, move, skill)
    ) strict
    """,
    """
    create table profiles (
        run text not null references runs(id),
        kernel text not null,
        profiler text not null,
        device text not null,
        record text not null,
        primary key (run, kernel, profiler, device)
    ) strict
    """,
    """
    create table diagnoses (
        run text not null references runs(id),
        round integer not null,
        kernel text not null,
        record text not null,
        prescriptions text not null,
        primary key (run, round, kernel)
    ) strict
    """,
)

UNANSWERED = (
    # Questions that are noted before they are put; the answer takes the note's place. What stays
    # was lost, or under way at a kill.
    """
    create table unanswered (
        id integer primary key,
        run text not null references runs(id),
        role text not null,
        round integer not null,
        slot text not null,
        turn integer not null,
        record text not null
    ) strict
    """,
    "create index unanswered_by_run on unanswered (run)",
)

CONVERSATIONS = (
    # The key says which question of the run it was, not how it was worded: a resumed or replayed
    # run finds its answer by it.
    """
    create table completions (
        run text not null references runs(id),
        role text not null,
        round integer not null,
        slot text not null,
        turn integer not null,
        record text not null,
        created_at text not null,
        primary key (run, role, round, slot, turn)
    ) strict
    """,
    """
    create table lessons (
        run text not null references runs(id),
        round integer not null,
        place integer not null,
        record text not null,
        primary key (run, round, place)
    ) strict
    """,
    """
    create table verdicts (
        run text not null references runs(id),
        kernel text not null,
        record text not null,
        primary key (run, kernel)
    ) strict
    """,
)
