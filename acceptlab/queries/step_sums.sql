-- Sums over the steps of every prompt: lengths with and without the bonus token.
-- grain: one row per prompt of a run that has steps
-- run_id, domain, prompt_id  keys
-- n_steps        draft-and-verify steps, which is target passes (count)
-- n_drafted      steps that drafted at least one node (count)
-- n_nodes        drafted nodes (count)
-- n_tested       nodes that the rule tested (count)
-- accepted_len   drafted tokens accepted, no bonus (tokens)
-- expected_len   expectation of accepted_len under the rule, given the drafted trees (tokens)
-- emitted_len    tokens added to the text, cut at EOS and at the length limit (tokens)
-- uncut_len      accepted_len + 1 a step, without the 1 where an accepted EOS ended the text (tokens)
-- n_accepting    steps that accepted at least one drafted token (count)
SELECT
    run_id,
    domain,
    prompt_id,
    count(*) AS n_steps,
    count(*) FILTER (n_nodes > 0) AS n_drafted,
    sum(n_nodes)::BIGINT AS n_nodes,
    sum(n_tested)::BIGINT AS n_tested,
    sum(accepted_len)::BIGINT AS accepted_len,
    sum(expected_accepted_len) AS expected_len,
    sum(emitted_len)::BIGINT AS emitted_len,
    -- an accepted EOS is the only way to end by EOS without a bonus token
    sum(
        accepted_len + 1 - (coalesce(stop_reason, '') = 'eos' AND bonus_token_id IS NULL)::INTEGER
    )::BIGINT AS uncut_len,
    count(*) FILTER (accepted_len > 0) AS n_accepting
FROM steps
GROUP BY run_id, domain, prompt_id
ORDER BY run_id, domain, prompt_id
