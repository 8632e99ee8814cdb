"""The tables of the database, as statements for migrations.py, each group under its noun.

Every table is strict. A record is kept whole, as JSON (kmem/serialize.py), in a column `record`; a
table has another column only where a query needs it. db/schema.sql shows what these statements
make; tools/write_schema.py writes it.
"""

#: The statuses with which the judge refuses a kernel for what it does, as a list in SQL.
REFUSALS = """(
        'wrong_values', 'wrong_contract', 'mutated_input', 'not_repeatable', 'impure',
        'implausible', 'refused_source'
    )"""

#: Runs and their short-term memory.
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
        failure text,
        seconds_spent real not null default 0,
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
        latency_ms real,
        estimated integer not null,
        record text not null,
        unique (run, kernel, move, skill)
    ) strict
    """,
    # The list of runs has the best time of each.
    "create index attempts_by_time on attempts (run, status, latency_ms, estimated)",
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
    """
    create table plans (
        run text not null references runs(id),
        round integer not null,
        record text not null,
        primary key (run, round)
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

#: What runs asked language models.
CONVERSATIONS = (
    # The key says which question of the run it was, not how the question was worded: a resumed or
    # replayed run finds its answer by this key.
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
    # A question is noted here before it is put, and its answer takes the note's place. A note that
    # stays was lost, or its question was under way when the run was killed.
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

#: Measured outcomes. A record's `writer` is who this memory says wrote it (contributors.py).
LEDGER = (
    """
    create table graphs (
        hash text primary key,
        structure_hash text not null,
        sizes blob not null
    ) strict
    """,
    "create index graphs_by_structure on graphs (structure_hash)",
    """
    create table outcomes (
        id integer primary key,
        hash text not null unique,
        graph_hash text not null references graphs(hash),
        arch text not null,
        precision text not null,
        purity text not null,
        skill text not null,
        status text not null,
        source_hash text not null,
        latency_ms real,
        created_at text not null,
        record text not null,
        writer text not null
    ) strict
    """,
    """
    create index outcomes_by_graph
    on outcomes (graph_hash, arch, precision, purity, status, latency_ms)
    """,
    # experience.py asks for the newest of a skill.
    "create index outcomes_by_skill on outcomes (skill)",
    # Pages list a skill's outcomes by their status or time.
    "create index outcomes_by_skill_and_time on outcomes (skill, status, latency_ms)",
    # Pages list all outcomes by these, too.
    "create index outcomes_by_status_and_time on outcomes (status, latency_ms)",
    # experience.py asks how a recipe's settings did on a graph.
    """
    create index outcomes_by_recipe
    on outcomes (skill, graph_hash, arch, precision, purity)
    where status = 'passed'
    """,
    # The judge refused few outcomes, and winners.py asks of every winner whether its kernel was
    # ever refused.
    f"""
    create index outcomes_refused on outcomes (graph_hash, source_hash, arch)
    where status in {REFUSALS}
    """,
    """
    create table outcome_operators (
        operator text not null,
        by_recipe integer not null,
        arch text not null,
        precision text not null,
        purity text not null,
        status text not null,
        ratio real not null,
        outcome integer not null references outcomes(id),
        primary key (operator, by_recipe, arch, precision, purity, status, ratio, outcome)
    ) strict, without rowid
    """,
    *(
        statement
        for table in ("retractions", "settlements")
        for statement in (
            f"""
    create table {table} (
        hash text primary key,
        outcome_hash text not null,
        record text not null,
        writer text not null
    ) strict
    """,
            f"create index {table}_by_outcome on {table} (outcome_hash)",
        )
    ),
    *(
        f"create trigger {table}_are_never_{done} before {verb} on {table}\n"
        "begin select raise(abort, 'the ledger is append-only: add a retraction instead'); end"
        for table in ("outcomes", "settlements", "retractions")
        for verb, done in (("update", "updated"), ("delete", "deleted"))
    ),
)

#: The ledger summed up, from which posteriors are computed (ledger/sums.py).
SUMS = (
    # Log-speedups are in units of 1e-9: sums of integers do not depend on the order of addition.
    """
    create table skill_sums (
        id integer primary key,
        skill text not null,
        bottleneck text not null,
        operator text not null,
        arch text not null,
        torch text not null,
        triton text not null,
        recipe text not null,
        origin text not null,
        tried integer not null,
        passed integer not null,
        timed integer not null,
        improved integer not null,
        log_speedup_e9 integer not null,
        log_speedup_squared_e9 integer not null,
        recalled integer not null,
        recalled_log_speedup_e9 integer not null,
        held integer not null,
        refuted integer not null,
        revision integer not null,
        unique (skill, bottleneck, operator, arch, torch, triton, recipe, origin)
    ) strict
    """,
    "create index skill_sums_by_revision on skill_sums (revision)",
    # The least time at each graph by the skills of a kernel: ledger/worth.py compares seeds by it.
    """
    create table graph_times (
        setting text not null,
        uses text not null,
        shared text not null,
        best_ms real not null,
        primary key (setting, uses, shared)
    ) strict, without rowid
    """,
    # `sums` maps a metric to how many outcomes had it and to their total, in units of 1e-6.
    """
    create table skill_signature_sums (
        skill text not null,
        origin text not null,
        sums text not null,
        primary key (skill, origin)
    ) strict, without rowid
    """,
    # `outcome` is the last one summed; `revision` counts changes; `generation` counts how often
    # all sums were derived anew, after which their ids mean other sums.
    """
    create table skill_sums_state (
        id integer primary key check (id = 1),
        outcome integer not null,
        revision integer not null,
        generation integer not null
    ) strict
    """,
    "insert into skill_sums_state (id, outcome, revision, generation) values (1, 0, 0, 0)",
)

#: Who measured what, and what is shared with a team.
CONTRIBUTORS = (
    """
    create table contributor (
        id integer primary key check (id = 1),
        name text not null
    ) strict
    """,
    """
    create table trust (
        origin text primary key,
        level real not null check (level between 0 and 1)
    ) strict
    """,
    """
    create table licences (
        origin text primary key,
        licence text not null
    ) strict
    """,
    # What contributors are called among people.
    """
    create table names (
        origin text primary key,
        name text not null
    ) strict
    """,
    # Where this memory was synced last, and how: JSON.
    """
    create table sync_settings (
        id integer primary key check (id = 1),
        record text not null
    ) strict
    """,
    # A redacted outcome is another record than the outcome it was made from; where both are known,
    # the redacted one is retracted.
    """
    create table redactions (
        redacted_hash text primary key,
        original_hash text not null
    ) strict
    """,
    "create index redactions_by_original on redactions (original_hash)",
    """
    create table segments (
        name text primary key,
        remote text not null,
        merged_at text not null
    ) strict
    """,
)

#: What was measured about devices.
DEVICES = (
    """
    create table baselines (
        problem_hash text not null,
        workload text not null,
        device text not null,
        contract text not null,
        versions text not null,
        name text not null,
        record text not null,
        primary key (problem_hash, workload, device, contract, versions, name)
    ) strict
    """,
    """
    create table ceilings (
        device text not null,
        versions text not null,
        record text not null,
        measured_at text not null,
        primary key (device, versions)
    ) strict
    """,
)

#: The skill library and what its search needs.
SKILLS = (
    # Every version of a skill ever seen; `library` says which one a name means now.
    """
    create table skills (
        id integer primary key,
        content_hash text not null unique,
        name text not null,
        description text not null,
        body text not null,
        operators text not null,
        bottlenecks text not null,
        signature text not null,
        arch text not null,
        precision text not null
    ) strict
    """,
    """
    create table library (
        name text primary key,
        content_hash text not null references skills(content_hash),
        origin text not null,
        path text not null
    ) strict
    """,
    "create index library_by_content on library (content_hash)",
    """
    create table library_version (
        id integer primary key check (id = 1),
        version integer not null
    ) strict
    """,
    "insert into library_version (id, version) values (1, 0)",
    """
    create virtual table skill_text
    using fts5 (name, description, body, tokenize = 'porter unicode61')
    """,
    """
    create table embeddings (
        model text not null,
        content_hash text not null,
        vector blob not null,
        primary key (model, content_hash)
    ) strict, without rowid
    """,
)

TABLES = (*RUNS, *CONVERSATIONS, *LEDGER, *SUMS, *CONTRIBUTORS, *DEVICES, *SKILLS)
