-- Steps of chains by where they began in the text that was written.
-- parameters: $window: drafted tokens a step; steps that drafted fewer are left out
-- grain: one row per step
-- run_id, domain, prompt_id   keys
-- start           tokens written before the step; the drafted ones would stand at start, start + 1, ...
-- accepted_len    drafted tokens accepted, no bonus (tokens)
-- expected_len    its expectation, given the drafted chain (tokens)
SELECT
    run_id,
    steps.domain,
    prompt_id,
    context_len - n_prompt_tokens AS start,
    accepted_len,
    expected_accepted_len AS expected_len
FROM steps
JOIN prompts USING (run_id, prompt_id)
WHERE n_nodes = $window
ORDER BY run_id, prompt_id, step
