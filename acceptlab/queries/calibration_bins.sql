-- Confidence of the draft against three outcomes, in bins of equal width.
-- reads: the view `confident` (confidence_model.sql or confidence_listed.sql)
-- parameters: $n_bins: number of bins from 0 to 1
-- grain: one row per prompt of a run and bin
-- run_id, domain, prompt_id  keys
-- bin                bin of the confidence, from 0; null where the confidence is not known
-- n_x, conf_x, label_x, error_x   nodes (count), sum of confidence, sum of the outcome, sum of the squared difference
--    x = accepted    whether the rule accepted the node, over tested nodes
--    x = argmax      whether the token is the target's argmax, over all nodes
--    x = ratio       accept_ratio, over all nodes that have one
WITH binned AS (
    SELECT
        *,
        -- least() passes over nulls, so the unknown needs a case of its own
        CASE WHEN confidence IS NOT NULL THEN least(floor(confidence * $n_bins), $n_bins - 1)::INTEGER END AS bin,
        (outcome = 'accepted')::INTEGER::DOUBLE AS accepted,
        is_target_argmax::INTEGER::DOUBLE AS argmax,
        accept_ratio::DOUBLE AS ratio
    FROM confident
)

SELECT
    run_id,
    domain,
    prompt_id,
    bin,
    count(*) FILTER (outcome <> 'untested') AS n_accepted,
    coalesce(sum(confidence) FILTER (outcome <> 'untested'), 0) AS conf_accepted,
    coalesce(sum(accepted) FILTER (outcome <> 'untested'), 0) AS label_accepted,
    coalesce(sum((confidence - accepted) ** 2) FILTER (outcome <> 'untested'), 0) AS error_accepted,
    count(*) AS n_argmax,
    coalesce(sum(confidence), 0) AS conf_argmax,
    coalesce(sum(argmax), 0) AS label_argmax,
    coalesce(sum((confidence - argmax) ** 2), 0) AS error_argmax,
    count(ratio) AS n_ratio,
    coalesce(sum(confidence) FILTER (ratio IS NOT NULL), 0) AS conf_ratio,
    coalesce(sum(ratio), 0) AS label_ratio,
    coalesce(sum((confidence - ratio) ** 2), 0) AS error_ratio
FROM binned
GROUP BY run_id, domain, prompt_id, bin
ORDER BY run_id, domain, prompt_id, bin
