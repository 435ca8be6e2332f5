-- Stored thresholds of one rule in both directions, for quantiles over contexts.
-- reads: the table cluster_rows (run_id, prompt_id, row): the number that an analysis gives a prompt
-- parameters: $place: which rule of CERTIFICATE_RULES, from 1
-- grain: one row per context that has thresholds, in no order
-- row                 number of the prompt, from 0
-- forward, reverse    the thresholds, may be infinite (nats)
SELECT
    cluster_rows.row,
    thresholds_forward[$place] AS forward,
    thresholds_reverse[$place] AS reverse
FROM contexts
JOIN cluster_rows USING (run_id, prompt_id)
WHERE
    kl_target_draft IS NOT NULL
    AND kl_draft_target IS NOT NULL
    AND thresholds_forward IS NOT NULL
    AND thresholds_reverse IS NOT NULL
