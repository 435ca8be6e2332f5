-- Sums over the steps of every prompt that drafted something: how long they accept, and how long they take.
-- grain: one row per prompt of a run with such a step
-- run_id, domain, prompt_id  keys
-- n_drafted     steps that drafted at least one node (count)
-- accepted_len  drafted tokens accepted, no bonus (tokens)
-- step_ms       time for drafting, verifying and bookkeeping; recording is no part of it (ms)
SELECT
    run_id,
    domain,
    prompt_id,
    count(*) AS n_drafted,
    sum(accepted_len)::BIGINT AS accepted_len,
    sum(draft_ms::DOUBLE + verify_ms::DOUBLE + other_ms::DOUBLE) AS step_ms
FROM steps
WHERE n_nodes > 0
GROUP BY run_id, domain, prompt_id
ORDER BY run_id, domain, prompt_id
