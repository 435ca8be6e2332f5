-- Nodes with the draft's confidence, for runs whose sampling distribution is the model distribution.
-- grain: one row per node
-- run_id, domain, prompt_id  keys
-- confidence         the draft's model probability of the drafted token
-- accept_ratio, is_target_argmax, outcome   as in the table nodes
SELECT run_id, domain, prompt_id, draft_prob::DOUBLE AS confidence, accept_ratio, is_target_argmax, outcome
FROM nodes
