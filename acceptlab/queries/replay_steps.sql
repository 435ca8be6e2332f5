-- Steps of a range of prompts that drafted something.
-- parameters: $first, $last: numbers of the first and last prompt (table prompt_groups)
-- grain: one row per step, by prompt, run and step
-- run_id, prompt_id, step   keys
-- n_nodes        drafted nodes (count)
-- n_tested       nodes that the run's own rule tested (count)
-- accepted_len   drafted tokens that it accepted (tokens)
-- expected_len   its expectation, given the drafted tree (tokens)
SELECT run_id, prompt_id, step, n_nodes, n_tested, accepted_len, expected_accepted_len AS expected_len
FROM steps
JOIN prompt_groups USING (run_id, prompt_id)
WHERE n_nodes > 0 AND prompt BETWEEN $first AND $last
ORDER BY prompt, run_id, step
