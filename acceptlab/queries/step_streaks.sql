-- Accepted lengths within a text: their spread, and runs of consecutive steps that accepted little.
-- parameters: $at_most: a step is low if its accepted_len is at most this (tokens)
-- grain: one row per prompt of a run that drafted something; steps without a draft are left out
-- run_id, domain, prompt_id  keys
-- n_texts        1, so that sums count texts
-- n_steps        drafted steps (count)
-- n_steps_sq     its square
-- sum_len        sum of accepted_len (tokens)
-- sum_len_sq     sum of its squares
-- mean_part      sum_len^2 / n_steps, the part of sum_len_sq that the text's mean explains
-- n_low          low steps (count)
-- n_streaks      runs of consecutive low steps (count)
-- longest_low    length of the longest one; 0 where there is none (steps)
WITH drafted AS (
    SELECT
        run_id,
        domain,
        prompt_id,
        accepted_len,
        row_number() OVER (PARTITION BY run_id, prompt_id ORDER BY step) AS place
    FROM steps
    WHERE n_nodes > 0
),

-- within a run of consecutive low steps, the place among all steps and the place among low ones rise together
low AS (
    SELECT
        run_id,
        prompt_id,
        place - row_number() OVER (PARTITION BY run_id, prompt_id ORDER BY place) AS streak
    FROM drafted
    WHERE accepted_len <= $at_most
),

streaks AS (
    SELECT run_id, prompt_id, streak, count(*) AS length
    FROM low
    GROUP BY run_id, prompt_id, streak
),

longest AS (
    SELECT run_id, prompt_id, count(*) AS n_streaks, max(length) AS longest_low
    FROM streaks
    GROUP BY run_id, prompt_id
),

texts AS (
    SELECT
        run_id,
        domain,
        prompt_id,
        count(*) AS n_steps,
        sum(accepted_len)::BIGINT AS sum_len,
        sum(accepted_len * accepted_len)::BIGINT AS sum_len_sq,
        count(*) FILTER (accepted_len <= $at_most) AS n_low
    FROM drafted
    GROUP BY run_id, domain, prompt_id
)

SELECT
    run_id,
    domain,
    prompt_id,
    1 AS n_texts,
    n_steps,
    n_steps * n_steps AS n_steps_sq,
    sum_len,
    sum_len_sq,
    sum_len * sum_len / n_steps::DOUBLE AS mean_part,
    n_low,
    coalesce(n_streaks, 0) AS n_streaks,
    coalesce(longest_low, 0) AS longest_low
FROM texts
LEFT JOIN longest USING (run_id, prompt_id)
ORDER BY run_id, domain, prompt_id
