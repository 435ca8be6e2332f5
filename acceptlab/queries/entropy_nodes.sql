-- Nodes with what entropy correlations rank, in narrow types: the ranks are taken over all of them at once.
-- parameters: $groups: labels of the groups (table prompt_groups), which fix their numbers
-- grain: one row per node that has both entropies, in no order
-- group_index     place of the prompt's group in $groups, from 0
-- depth           distance from the root, from 1
-- prompt          number of the prompt (table prompt_groups)
-- draft_entropy, target_entropy   of the model distributions in the parent's context (nats)
-- accepted        1 accepted, 0 rejected, -1 untested
-- is_target_argmax   1 or 0; -1 where unknown
-- accept_ratio    min(1, target_prob/draft_prob); NaN where undefined
WITH numbered AS (
    SELECT run_id, prompt_id, prompt, (list_position($groups, label) - 1)::USMALLINT AS group_index
    FROM prompt_groups
)

SELECT
    group_index,
    depth,
    prompt,
    draft_entropy,
    target_entropy,
    CASE outcome WHEN 'accepted' THEN 1 WHEN 'rejected' THEN 0 ELSE -1 END::TINYINT AS accepted,
    coalesce(is_target_argmax::TINYINT, -1)::TINYINT AS is_target_argmax,
    coalesce(accept_ratio, 'NaN'::FLOAT) AS accept_ratio
FROM nodes
JOIN numbered USING (run_id, prompt_id)
WHERE draft_entropy IS NOT NULL AND target_entropy IS NOT NULL
