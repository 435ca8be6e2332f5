-- Prompts of the runs, in a fixed order.
-- grain: one row per prompt of a run, skipped ones included
-- run_id, domain, prompt_id  keys
-- source         where the prompt came from
-- n_new_tokens   generated tokens, EOS included (tokens)
-- wall_ms        from prefill to the last token, recording included (ms)
-- skip_reason    why the prompt was skipped; null where it ran
SELECT run_id, domain, prompt_id, source, n_new_tokens, wall_ms, skip_reason
FROM prompts
ORDER BY run_id, domain, prompt_id
