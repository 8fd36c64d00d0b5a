// Tenants files, one after another with a byte 0 between them, as a server reads them again and
// again while calls come and go.
#include "absl/strings/match.h"
#include "base/check.h"
#include "base/current.h"
#include "server/access/tenants.h"
#include "server/engine/quota.h"
#include "tests/fuzz/bytes.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace ovq;
  fuzz::Bytes bytes(data, size);
  const auto quotas = std::make_shared<TenantQuotas>();
  std::vector<std::unique_ptr<QuotaHold>> holds;
  int64_t sessions = 0;
  while (!bytes.empty()) {
    const std::string_view text = bytes.Word();
    (void)HashToken(text);
    const absl::StatusOr<TenantList> list = TenantList::Parse(text, "t.json");
    if (!list.ok()) {
      Check(absl::StartsWith(list.status().message(), "t.json"), "an error names the file");
      continue;
    }
    Check(list->Find(DigestOf("nobody's token")) == nullptr, "a token that is in no file");
    const std::map<std::string, TenantLimits> limits = list->Limits();
    Check(limits.size() == list->size(), "every tenant has limits of its own");
    quotas->SetLimits(limits);
    for (const auto& [name, limit] : limits) {
      const double weight = quotas->Weight(name);
      Check(weight >= 0.01 && weight <= 100, "a weight within its limits");
      (void)quotas->ChargeRequest(name);
      auto hold =
          quotas->Admit(name, {.client = name, .prompt_tokens = 7, .sessions = 1, .bytes = 100});
      if (!hold.ok()) continue;
      if (*hold != nullptr) ++sessions;
      if (*hold != nullptr) holds.push_back(*std::move(hold));
    }
    int64_t used = 0;
    for (const TenantUse& use : quotas->Use()) used += use.sessions;
    Check(used == sessions, "what is held is what was admitted");
  }
  holds.clear();
  for (const TenantUse& use : quotas->Use()) {
    Check(use.sessions == 0 && use.state_bytes == 0, "all was given back");
  }
  Check(quotas->Clients().empty(), "by the clients, too");
  return 0;
}
