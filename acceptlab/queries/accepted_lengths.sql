-- Distribution of the accepted length, from which survival S_d follows.
-- grain: one row per prompt of a run and accepted length, over the steps that drafted something
-- run_id, domain, prompt_id  keys
-- accepted_len   drafted tokens accepted in the step, no bonus (tokens)
-- n_steps        steps with that accepted length (count)
SELECT run_id, domain, prompt_id, accepted_len, count(*) AS n_steps
FROM steps
WHERE n_nodes > 0
GROUP BY run_id, domain, prompt_id, accepted_len
ORDER BY run_id, domain, prompt_id, accepted_len
