-- Counts by fine level of confidence, from which the area under the ROC curve follows for any weights of prompts.
-- reads: the view `confident` (confidence_model.sql or confidence_listed.sql)
-- grain: one row per prompt of a run and level; nodes of unknown confidence are left out
-- run_id, domain, prompt_id  keys
-- level          log odds of the confidence in eighths, cut at -10 and 10, from 0 to 160
-- pos_accepted, neg_accepted   tested nodes that were accepted, and that were not (count)
-- pos_argmax, neg_argmax       nodes whose token is the target's argmax, and whose is not (count)
SELECT
    run_id,
    domain,
    prompt_id,
    CASE
        WHEN confidence <= 0 THEN 0
        WHEN confidence >= 1 THEN 160
        ELSE 80 + round(8 * greatest(-10, least(10, ln(confidence / (1 - confidence)))))::INTEGER
    END AS level,
    count(*) FILTER (outcome = 'accepted') AS pos_accepted,
    count(*) FILTER (outcome = 'rejected') AS neg_accepted,
    count(*) FILTER (is_target_argmax) AS pos_argmax,
    count(*) FILTER (NOT is_target_argmax) AS neg_argmax
FROM confident
WHERE confidence IS NOT NULL
GROUP BY run_id, domain, prompt_id, level
ORDER BY run_id, domain, prompt_id, level
