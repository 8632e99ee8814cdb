-- Generated from kmem/memory/schema.py by tools/write_schema.py. Do not edit.

CREATE TABLE kernels (
    hash text primary key,
    source text not null,
    parent text,
    record text not null
) strict;

CREATE TABLE runs (
    id text primary key,
    state text not null,
    record text not null,
    result text,
    failure text,
    seconds_spent real not null default 0,
    created_at text not null
) strict;

CREATE TABLE attempts (
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
) strict;

CREATE INDEX attempts_by_time on attempts (run, status, latency_ms, estimated);

CREATE TABLE profiles (
    run text not null references runs(id),
    kernel text not null,
    profiler text not null,
    device text not null,
    record text not null,
    primary key (run, kernel, profiler, device)
) strict;

CREATE TABLE diagnoses (
    run text not null references runs(id),
    round integer not null,
    kernel text not null,
    record text not null,
    prescriptions text not null,
    primary key (run, round, kernel)
) strict;

CREATE TABLE plans (
    run text not null references runs(id),
    round integer not null,
    record text not null,
    primary key (run, round)
) strict;

CREATE TABLE lessons (
    run text not null references runs(id),
    round integer not null,
    place integer not null,
    record text not null,
    primary key (run, round, place)
) strict;

CREATE TABLE verdicts (
    run text not null references runs(id),
    kernel text not null,
    record text not null,
    primary key (run, kernel)
) strict;

CREATE TABLE completions (
    run text not null references runs(id),
    role text not null,
    round integer not null,
    slot text not null,
    turn integer not null,
    record text not null,
    created_at text not null,
    primary key (run, role, round, slot, turn)
) strict;

CREATE TABLE unanswered (
    id integer primary key,
    run text not null references runs(id),
    role text not null,
    round integer not null,
    slot text not null,
    turn integer not null,
    record text not null
) strict;

CREATE INDEX unanswered_by_run on unanswered (run);

CREATE TABLE graphs (
    hash text primary key,
    structure_hash text not null,
    sizes blob not null
) strict;

CREATE INDEX graphs_by_structure on graphs (structure_hash);

CREATE TABLE outcomes (
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
) strict;

CREATE INDEX outcomes_by_graph
on outcomes (graph_hash, arch, precision, purity, status, latency_ms);

CREATE INDEX outcomes_by_skill on outcomes (skill);

CREATE INDEX outcomes_by_skill_and_time on outcomes (skill, status, latency_ms);

CREATE INDEX outcomes_by_status_and_time on outcomes (status, latency_ms);

CREATE INDEX outcomes_by_recipe
on outcomes (skill, graph_hash, arch, precision, purity)
where status = 'passed';

CREATE INDEX outcomes_refused on outcomes (graph_hash, source_hash, arch)
where status in (
    'wrong_values', 'wrong_contract', 'mutated_input', 'not_repeatable', 'impure',
    'implausible', 'refused_source'
);

CREATE TABLE outcome_operators (
    operator text not null,
    by_recipe integer not null,
    arch text not null,
    precision text not null,
    purity text not null,
    status text not null,
    ratio real not null,
    outcome integer not null references outcomes(id),
    primary key (operator, by_recipe, arch, precision, purity, status, ratio, outcome)
) strict, without rowid;

CREATE TABLE retractions (
    hash text primary key,
    outcome_hash text not null,
    record text not null,
    writer text not null
) strict;

CREATE INDEX retractions_by_outcome on retractions (outcome_hash);

CREATE TABLE settlements (
    hash text primary key,
    outcome_hash text not null,
    record text not null,
    writer text not null
) strict;

CREATE INDEX settlements_by_outcome on settlements (outcome_hash);

CREATE TRIGGER outcomes_are_never_updated before update on outcomes
begin select raise(abort, 'the ledger is append-only: add a retraction instead'); end;

CREATE TRIGGER outcomes_are_never_deleted before delete on outcomes
begin select raise(abort, 'the ledger is append-only: add a retraction instead'); end;

CREATE TRIGGER settlements_are_never_updated before update on settlements
begin select raise(abort, 'the ledger is append-only: add a retraction instead'); end;

CREATE TRIGGER settlements_are_never_deleted before delete on settlements
begin select raise(abort, 'the ledger is append-only: add a retraction instead'); end;

CREATE TRIGGER retractions_are_never_updated before update on retractions
begin select raise(abort, 'the ledger is append-only: add a retraction instead'); end;

CREATE TRIGGER retractions_are_never_deleted before delete on retractions
begin select raise(abort, 'the ledger is append-only: add a retraction instead'); end;

CREATE TABLE skill_sums (
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
) strict;

CREATE INDEX skill_sums_by_revision on skill_sums (revision);

CREATE TABLE graph_times (
    setting text not null,
    uses text not null,
    shared text not null,
    best_ms real not null,
    primary key (setting, uses, shared)
) strict, without rowid;

CREATE TABLE skill_signature_sums (
    skill text not null,
    origin text not null,
    sums text not null,
    primary key (skill, origin)
) strict, without rowid;

CREATE TABLE skill_sums_state (
    id integer primary key check (id = 1),
    outcome integer not null,
    revision integer not null,
    generation integer not null
) strict;

CREATE TABLE contributor (
    id integer primary key check (id = 1),
    name text not null
) strict;

CREATE TABLE trust (
    origin text primary key,
    level real not null check (level between 0 and 1)
) strict;

CREATE TABLE licences (
    origin text primary key,
    licence text not null
) strict;

CREATE TABLE names (
    origin text primary key,
    name text not null
) strict;

CREATE TABLE sync_settings (
    id integer primary key check (id = 1),
    record text not null
) strict;

CREATE TABLE redactions (
    redacted_hash text primary key,
    original_hash text not null
) strict;

CREATE INDEX redactions_by_original on redactions (original_hash);

CREATE TABLE segments (
    name text primary key,
    remote text not null,
    merged_at text not null
) strict;

CREATE TABLE baselines (
    problem_hash text not null,
    workload text not null,
    device text not null,
    contract text not null,
    versions text not null,
    name text not null,
    record text not null,
    primary key (problem_hash, workload, device, contract, versions, name)
) strict;

CREATE TABLE ceilings (
    device text not null,
    versions text not null,
    record text not null,
    measured_at text not null,
    primary key (device, versions)
) strict;

CREATE TABLE skills (
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
) strict;

CREATE TABLE library (
    name text primary key,
    content_hash text not null references skills(content_hash),
    origin text not null,
    path text not null
) strict;

CREATE INDEX library_by_content on library (content_hash);

CREATE TABLE library_version (
    id integer primary key check (id = 1),
    version integer not null
) strict;

CREATE VIRTUAL TABLE skill_text
using fts5 (name, description, body, tokenize = 'porter unicode61');

CREATE TABLE embeddings (
    model text not null,
    content_hash text not null,
    vector blob not null,
    primary key (model, content_hash)
) strict, without rowid;
