-- The health of an LLMDeployment for Argo CD: what its operator says in the status, and nothing that is older than the spec.
-- Argo CD runs this in a Lua 5.1 without string, math or io.
local health = {}

if obj.metadata.deletionTimestamp ~= nil then
  health.status = "Progressing"
  health.message = "Pending deletion"
  return health
end

-- A status of an earlier generation would call a spec healthy that nobody has tried yet.
local status = obj.status
if status == nil or status.observedGeneration ~= obj.metadata.generation then
  health.status = "Progressing"
  health.message = "the operator has not looked at this generation yet: is it running, and does it watch this namespace?"
  return health
end

local conditions = {}
for _, condition in ipairs(status.conditions or {}) do
  conditions[condition.type] = condition
end

local function is(name)
  return conditions[name] ~= nil and conditions[name].status == "True"
end

local function words(name)
  return (conditions[name].reason or "") .. ": " .. (conditions[name].message or "")
end

-- Before Ready: a rollout that failed is degraded, though the old replicas serve.
if is("Degraded") then
  health.status = "Degraded"
  health.message = words("Degraded")
elseif obj.spec.suspend == true then
  health.status = "Suspended"
  health.message = "spec.suspend is true: no replica is wanted"
elseif is("Ready") then -- scaled to zero as well: that is what the spec asks for
  health.status = "Healthy"
  health.message = words("Ready")
else
  health.status = "Progressing"
  health.message = conditions["Ready"] ~= nil and words("Ready") or "the status has no conditions yet"
end
return health
