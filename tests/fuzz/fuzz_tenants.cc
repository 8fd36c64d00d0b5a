// Fuzzes tenants files, several separated by a byte 0, which a server reloads while calls come and
// go.
#include "absl/strings/match.h"
#include "base/check.h"
#include "base/current.h"
#include "server/access/tenants.h"
#include "server/engine/common/quota.h"
#include "tests/fuzz/bytes.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace ovq;
  fuzz::Bytes bytes(data, size);
  const auto quotas = std::make_shared<engine::TenantQuotas>();
  std::vector<std::unique_ptr<engine::QuotaHold>> holds;
  int64_t sessions = 0;
  while (!bytes.empty()) {
    const std::string_view text = bytes.Word();
    (void)server::HashToken(text);
    const absl::StatusOr<server::TenantList> list = server::TenantList::Parse(text, "t.json");
    if (!list.ok()) {
      Check(absl::StartsWith(list.status().message(), "t.json"), "an error names the file");
      continue;
    }
    Check(list->Find(server::DigestToken("nobody's token")) == nullptr,
          "a token that is in no file");
    const std::map<std::string, engine::TenantLimits> limits = list->Limits();
    Check(limits.size() == list->size(), "every tenant has limits of its own");
    quotas->SetLimits(limits);
    for (const auto& [name, limit] : limits) {
      const double weight = quotas->Weight(name);
      Check(weight >= 0.01 && weight <= 100, "a weight within its limits");
      const absl::Status charged = quotas->ChargeRequest(name);
      Check(charged.ok() || !charged.message().empty(), "a refusal says why");
      // A call that holds nothing, then two sessions, one of which ends.
      (void)quotas->Admit(name, {.client = name, .prompt_tokens = 1});
      quotas->ChargeTokens(name, 3);
      auto hold =
          quotas->Admit(name, {.client = name, .prompt_tokens = 7, .sessions = 2, .bytes = 200});
      if (!hold.ok()) {
        Check(!hold.status().message().empty(), "a refusal says why");
        continue;
      }
      holds.push_back((*hold)->Split(1, 100));
      (*hold)->ReleasePart(1, 50);
      holds.push_back(*std::move(hold));
      ++sessions;
      Check(quotas->ClientUsage(name).sessions > 0, "the client has something");
    }
    int64_t used = 0;
    for (const engine::TenantUse& use : quotas->Use()) used += use.sessions;
    Check(used == sessions, "what is held is what was admitted");
  }
  holds.clear();
  for (const engine::TenantUse& use : quotas->Use()) {
    Check(use.sessions == 0 && use.state_bytes == 0, "all was given back");
  }
  Check(quotas->Clients().empty(), "by the clients, too");
  return 0;
}
