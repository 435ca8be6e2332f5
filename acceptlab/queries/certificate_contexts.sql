-- What certificates need of a context: divergences, thresholds, and where each model's list has the other's argmax.
-- reads: the table cluster_rows (run_id, prompt_id, row): the number that an analysis gives a prompt
-- grain: one row per context that has divergences and thresholds, in no order
-- row                 number of the prompt, from 0
-- kl_target_draft, kl_draft_target       divergences of the model distributions, may be infinite (nats)
-- target_margin, target_top_prob         of the target's model distribution
-- target_entropy      of the target's model distribution (nats)
-- target_place        place of the draft's argmax in the target's list, from 1; 0 where the list lacks it
-- draft_place         place of the target's argmax in the draft's list, from 1; 0 where the list lacks it
-- listed_prob         the target's probability of the draft's argmax as the list has it; null where it lacks it
-- last_prob           the smallest probability in the target's list
-- thresholds_forward, thresholds_reverse   one a rule of CERTIFICATE_RULES (nats)
SELECT
    cluster_rows.row,
    kl_target_draft,
    kl_draft_target,
    target_margin,
    target_top_prob,
    target_entropy,
    coalesce(list_position(target_token_ids, draft_argmax), 0)::INTEGER AS target_place,
    coalesce(list_position(draft_token_ids, target_argmax), 0)::INTEGER AS draft_place,
    target_probs[list_position(target_token_ids, draft_argmax)] AS listed_prob,
    target_probs[len(target_probs)] AS last_prob,
    thresholds_forward,
    thresholds_reverse
FROM contexts
JOIN cluster_rows USING (run_id, prompt_id)
WHERE
    kl_target_draft IS NOT NULL
    AND kl_draft_target IS NOT NULL
    AND thresholds_forward IS NOT NULL
    AND thresholds_reverse IS NOT NULL
