#include "server/engine/scheduling/batch_planner.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <numeric>
#include <utility>

#include "absl/container/flat_hash_map.h"

namespace ovq::engine {
namespace {

constexpr double kRounding = 1e-9;
// Weight of an observation at a cost that has several: an interrupted iteration counts little.
constexpr double kLearn = 0.125;
constexpr double kMostSurprise = 2;
// The costs of kinds of rows change more slowly than the times of iterations.
constexpr double kLearnRows = 1.0 / 64;
// How far from what was measured they may go: while all iterations have rows of one kind, what
// those cost cannot be told from what iterations take.
constexpr double kMostLearned = 4;
constexpr double kNoDebt = std::numeric_limits<double>::infinity();

struct Need {
  double tokens = 0;  // tokens wanted, at most those of a batch
  double cost = 0;    // of these tokens
  double beside = 0;  // their BatchCandidate::token_seconds

  double token_cost() const { return cost / tokens; }
  void Add(const Need& other) {
    tokens += other.tokens;
    cost += other.cost;
    beside += other.beside;
  }
  // Makes a cost of the seconds beside the batch.
  void Convert(double cost_per_second) { cost += cost_per_second * std::exchange(beside, 0); }
};

// A call that decodes. Its sequences are neighbors among the candidates.
struct Call : Need {
  int first = 0, n = 0;  // candidates
};

struct Client {
  std::string_view name;
  double weight = 1;
  std::vector<Call> calls = {};    // calls that decode, of this batch's variant
  Need prompts = {};               // all its prompts of this variant together
  std::vector<int> prompted = {};  // candidates of these prompts
  Need elsewhere = {};             // of other variants
  Need all = {};                   // of this variant
};

// Divides `amount` by weight. Nobody gets more than it wants; the others share what it leaves.
std::vector<double> Shares(double amount, std::span<const double> wants,
                           std::span<const double> weights) {
  // Nothing to sort where all want more than their parts, as many calls of one client do.
  double weight = std::accumulate(weights.begin(), weights.end(), 0.0);
  std::vector<double> parts(weights.begin(), weights.end());
  for (double& part : parts) part *= amount / weight;
  if (std::ranges::equal(parts, wants, std::ranges::less_equal())) return parts;

  std::vector<size_t> by_want(wants.size());
  std::iota(by_want.begin(), by_want.end(), 0);
  std::ranges::sort(by_want, {}, [&](size_t i) { return wants[i] / weights[i]; });
  for (const size_t i : by_want) {
    parts[i] = std::min(wants[i], amount * weights[i] / weight);
    amount -= parts[i];
    weight -= weights[i];
  }
  return parts;
}

class Planner {
 public:
  Planner(std::span<const BatchCandidate> candidates, int32_t max_tokens, int64_t round,
          const model::StateLayout* layout)
      : candidates_(candidates), max_tokens_(max_tokens), round_(round), layout_(layout) {
    Group();
  }

  std::vector<PlanItem> Plan(const BatchCostModel* costs, int n_variants,
                             std::span<HostDebt> debts) {
    const double seconds = costs != nullptr ? TimeBound(*costs, n_variants) : 0;
    if (costs != nullptr) Convert(costs->Reach(seconds) / seconds);
    double amount = 0;
    for (const Client& client : clients_) amount += client.all.cost;
    if (amount == 0) return {};
    if (costs != nullptr) amount = std::min(amount, costs->Reach(seconds));
    std::vector<double> parts = Parts(amount);
    if (costs != nullptr) {
      Lower(costs->Reach(kFilled * seconds), parts);
      PayDebts(debts, amount / costs->Seconds(std::max(amount, 1.0)), parts);
    }
    constexpr double kGolden = 0.6180339887498949;  // spreads rounds evenly
    carried_ = std::fmod(static_cast<double>(round_) * kGolden, 1);
    for (size_t i = 0; i < clients_.size(); ++i) ShareClient(clients_[i], parts[i]);
    if (plan_.empty()) GiveOne();
    return std::move(plan_);
  }

 private:
  void Group() {
    absl::flat_hash_map<std::string_view, size_t> known;
    int64_t last_order = -1;  // of the last call that decodes
    std::string_view last_client;
    size_t last = 0;  // index of last_client
    for (size_t i = 0; i < candidates_.size(); ++i) {
      const BatchCandidate& candidate = candidates_[i];
      if (candidate.paused) continue;
      if (clients_.empty() || candidate.client != last_client) {
        const auto [at, is_new] = known.try_emplace(candidate.client, clients_.size());
        if (is_new) {
          clients_.push_back({.name = candidate.client, .weight = candidate.weight});
        }
        last_client = candidate.client;
        last = at->second;
      }
      Client& client = clients_[last];
      if (layout_ != nullptr && candidate.layout != layout_) {
        Add(candidate, client.elsewhere);
      } else if (!candidate.decoding) {
        client.prompted.push_back(static_cast<int>(i));
        Add(candidate, client.prompts);
      } else {
        if (client.calls.empty() || last_order != candidate.order) {
          client.calls.emplace_back().first = static_cast<int>(i);
        }
        last_order = candidate.order;
        ++client.calls.back().n;
        Add(candidate, client.calls.back());
      }
    }
    for (Client& client : clients_) {
      client.all = client.prompts;
      for (const Call& call : client.calls) client.all.Add(call);
    }
  }
  void Add(const BatchCandidate& candidate, Need& need) const {
    const double tokens =
        std::min(static_cast<double>(candidate.n_tokens), max_tokens_ - need.tokens);
    need.Add({.tokens = tokens,
              .cost = tokens * candidate.token_cost,
              .beside = tokens * candidate.token_seconds});
  }
  // A batch takes less time for each of its tokens the more it has, time beside it does not. So the
  // cost of a second is what a batch of the allowed time has for each.
  void Convert(double cost_per_second) {
    for (Client& client : clients_) {
      client.prompts.Convert(cost_per_second);
      client.all.Convert(cost_per_second);
      for (Call& call : client.calls) call.Convert(cost_per_second);
    }
  }

  // Seconds that a batch may take so that no client of any variant waits longer than promised.
  double TimeBound(const BatchCostModel& costs, int n_variants) const {
    double weights = 0;
    for (const Client& client : clients_) weights += client.weight;
    double seconds = std::max(kLongBatchSeconds, kLongBatchTokens * costs.Seconds(1));
    Need answers;
    for (const Client& client : clients_) {
      for (const Call& call : client.calls) answers.Add(call);
      Need need = client.all;
      need.Add(client.elsewhere);
      const double part = std::min(1.0, max_tokens_ / need.tokens);
      const double took = costs.Seconds(need.cost * part) + need.beside * part;
      seconds = std::min(seconds, took * weights / client.weight);
    }
    if (answers.cost > 0) {
      seconds = std::min(seconds, costs.Target(answers.cost, answers.beside) * n_variants);
    }
    return seconds / n_variants;
  }

  // Divides a cost among the clients. [clients_]
  std::vector<double> Parts(double amount) const {
    std::vector<double> wants, weights;
    for (const Client& client : clients_) {
      wants.push_back(client.all.cost);
      weights.push_back(client.weight);
    }
    // Tokens differ in cost: lower the amount until the number of tokens fits, or nearly.
    constexpr int kRounds = 16;
    std::vector<double> parts;
    for (int round = 0; round < kRounds; ++round) {
      parts = Shares(amount, wants, weights);
      double tokens = 0;
      for (size_t i = 0; i < clients_.size(); ++i) {
        if (parts[i] > 0) tokens += parts[i] / clients_[i].all.token_cost();
      }
      if (tokens <= max_tokens_ + kRounding) break;
      amount *= max_tokens_ / tokens;
    }
    return parts;
  }
  // Lowers the parts of clients that want more, until all parts together are `amount`, but never
  // below the part of a client that has all it wants.
  void Lower(double amount, std::vector<double>& parts) const {
    double least = 0, weights = 0;
    for (size_t i = 0; i < clients_.size(); ++i) {
      const Client& client = clients_[i];
      if (parts[i] < client.all.cost) {
        weights += client.weight;
      } else {
        amount -= parts[i];
        least = std::max(least, parts[i] / client.weight);
      }
    }
    if (least == 0) return;  // nobody would gain
    for (size_t i = 0; i < clients_.size(); ++i) {
      const Client& client = clients_[i];
      if (parts[i] == client.all.cost) continue;
      parts[i] = std::min(parts[i], std::max(least, amount / weights) * client.weight);
    }
  }
  // debts: by client. speed: cost a second.
  void PayDebts(std::span<HostDebt> debts, double speed, std::vector<double>& parts) const {
    if (debts.empty()) return;
    std::vector<HostDebt*> of(clients_.size());
    double weights = 0, least = kNoDebt;
    for (size_t i = 0; i < clients_.size(); ++i) {
      const Client& client = clients_[i];
      const auto found = std::ranges::lower_bound(debts, client.name, {}, &HostDebt::client);
      if (found != debts.end() && found->client == client.name) of[i] = &*found;
      weights += client.weight;
      least = std::min(least, of[i] == nullptr ? 0 : of[i]->seconds / client.weight);
    }
    double left = 0;
    for (size_t i = 0; i < clients_.size(); ++i) {
      if (of[i] != nullptr) {
        const double forgiven = least * clients_[i].weight;
        const double due = std::min(parts[i] * kMostForDebt, (of[i]->seconds - forgiven) * speed);
        of[i]->paid = forgiven + due / speed;
        if (clients_[i].all.tokens > 1) parts[i] -= due;
      }
      left += parts[i];
    }
    std::ranges::sort(of);  // by client, too
    for (HostDebt& debt : debts) {
      if (std::ranges::binary_search(of, &debt)) continue;
      debt.paid = std::min(debt.seconds, left / speed * debt.weight / (weights + debt.weight));
    }
  }
  void ShareClient(const Client& client, double amount) {
    const bool reads = !client.prompted.empty();
    double decoding =
        reads ? amount - std::min(client.prompts.cost, amount / kPrefillShare) : amount;
    std::vector<double> wants, weights(client.calls.size(), 1);
    for (const Call& call : client.calls) wants.push_back(call.cost);
    const std::vector<double> parts = Shares(decoding, wants, weights);
    for (size_t i = 0; i < parts.size(); ++i) {
      const Call& call = client.calls[i];
      GiveInRound(call, Rounded(parts[i] / call.token_cost()));
      amount -= parts[i];
    }
    if (reads) GivePrompts(client, Rounded(amount / client.prompts.token_cost()));
  }
  // Rounds to whole tokens and carries the remainder to the next part, so that over the iterations
  // each gets its part.
  int64_t Rounded(double tokens) {
    const double whole = std::floor(tokens + kRounding);
    carried_ += std::max(tokens - whole, 0.0);
    const double carry = std::floor(carried_ + kRounding);
    carried_ -= carry;
    return static_cast<int64_t>(whole + carry);
  }
  // Gives one token to one client, where no part reached a token.
  void GiveOne() {
    const size_t n = clients_.size();
    for (size_t i = 0; i < n && plan_.empty(); ++i) {
      const Client& client = clients_[(static_cast<uint64_t>(round_) + i) % n];
      if (!client.calls.empty()) {
        GiveInRound(client.calls[static_cast<uint64_t>(round_) % client.calls.size()], 1);
      } else if (!client.prompted.empty()) {
        GivePrompts(client, 1);
      }
    }
  }
  int64_t Given(const Need& need, int64_t n_tokens) {
    n_tokens = std::min(
        {n_tokens, max_tokens_ - n_planned_, static_cast<int64_t>(std::llround(need.tokens))});
    n_planned_ += n_tokens;
    return n_tokens;
  }
  // Gives tokens to the call's sequences. Each round continues where the last one stopped.
  void GiveInRound(const Call& call, int64_t n_tokens) {
    const int64_t n = call.n, chosen = Given(call, n_tokens);
    const int64_t first = chosen == n ? 0 : round_ % n * chosen % n;
    for (int64_t i = 0; i < chosen; ++i) {
      plan_.push_back({call.first + static_cast<int>((first + i) % n), 1});
    }
  }
  void GivePrompts(const Client& client, int64_t n_tokens) {
    n_tokens = Given(client.prompts, n_tokens);
    // Each prompt that is served gets at least one token.
    std::vector<int> members = client.prompted;
    const auto n_served = std::min<int64_t>(n_tokens, std::ssize(members));
    std::ranges::partial_sort(members, members.begin() + n_served, {}, [&](int i) {
      const BatchCandidate& candidate = candidates_[i];
      return std::pair(candidate.consumed / kPromptRound, candidate.order);
    });
    members.resize(static_cast<size_t>(n_served));
    // First up to the ends of the prompts' rounds, then what is left.
    std::vector<int64_t> tokens(members.size());
    for (const bool in_round : {true, false}) {
      for (size_t i = 0; i < members.size(); ++i) {
        const BatchCandidate& candidate = candidates_[members[i]];
        int64_t most = candidate.n_tokens - tokens[i];
        if (in_round) most = std::min(most, kPromptRound - candidate.consumed % kPromptRound);
        const int64_t given = std::min(most, n_tokens);
        tokens[i] += given;
        n_tokens -= given;
      }
    }
    for (size_t i = 0; i < members.size(); ++i) {
      if (tokens[i] > 0) plan_.push_back({members[i], static_cast<int32_t>(tokens[i])});
    }
  }

  const std::span<const BatchCandidate> candidates_;
  const int64_t max_tokens_;
  const int64_t round_;
  const model::StateLayout* const layout_;
  std::vector<Client> clients_;
  double carried_ = 0;  // remainders of tokens
  int64_t n_planned_ = 0;
  std::vector<PlanItem> plan_;
};

}  // namespace

void BatchCostModel::Observe(double cost, absl::Duration took) {
  const double seconds = absl::ToDoubleSeconds(took);
  if (!(seconds > 0)) return;
  const double at = std::clamp(std::log2(cost), 0.0, kPoints - 1.001);
  const auto low = static_cast<size_t>(at);
  if (!known_) {
    Point& nearest = points_[at - static_cast<double>(low) < 0.5 ? low : low + 1];
    nearest = {.seconds = seconds, .seen = 1};
    known_ = true;
  }
  const double surprise = std::clamp(seconds / Seconds(cost), 1 / kMostSurprise, kMostSurprise) - 1;
  for (const size_t i : {low, low + 1}) {
    const double near = 1 - std::abs(at - static_cast<double>(i));
    Point& point = points_[i];
    point.seconds *= 1 + near * surprise * std::max(1 / (1 + point.seen), kLearn);
    point.seen += near;
  }
  FillGaps();
  for (size_t i = low; i > 0; --i) {
    const double here = points_[i].seconds;
    points_[i - 1].seconds = std::min(points_[i - 1].seconds, here);
  }
  for (size_t i = low; i + 1 < kPoints; ++i) {
    const double here = points_[i].seconds;
    points_[i + 1].seconds = std::clamp(points_[i + 1].seconds, here, 2 * here);
  }
}

void BatchCostModel::SetRowCost(RowKind kind, double cost) {
  const auto i = static_cast<size_t>(kind);
  row_costs_[i] = measured_row_costs_[i] = cost;
}

double BatchCostModel::Cost(const RowCounts& rows) const {
  return std::inner_product(rows.begin(), rows.end(), row_costs_.begin(), 0.0);
}

void BatchCostModel::Observe(const RowCounts& rows, double other, absl::Duration took) {
  const double cost = std::max(Cost(rows) + other, 1.0), seconds = absl::ToDoubleSeconds(took);
  if (!(seconds > 0)) return;
  const double expected = known_ ? Seconds(cost) : seconds;
  Observe(cost, took);
  const double surprise = std::clamp(seconds / expected, 1 / kMostSurprise, kMostSurprise) - 1;
  for (size_t i = 1; i < rows.size(); ++i) {  // an answer's row is the unit
    row_costs_[i] *= 1 + kLearnRows * surprise * rows[i] * row_costs_[i] / cost;
    row_costs_[i] = std::clamp(row_costs_[i], measured_row_costs_[i] / kMostLearned,
                               measured_row_costs_[i] * kMostLearned);
  }
}

void BatchCostModel::FillGaps() {
  const Point* left = nullptr;  // the last point with an observation
  for (Point& point : points_) {
    if (point.seen >= 1) {
      left = &point;
      continue;
    }
    const auto right = std::find_if(&point, points_.data() + kPoints,
                                    [](const Point& other) { return other.seen >= 1; });
    const auto times = [&](const Point& other) {  // cost of `other` / cost of `point`
      return std::ldexp(1, static_cast<int>(&other - &point));
    };
    const bool has_right = right != points_.data() + kPoints;
    if (left != nullptr && has_right) {
      const double part = (1 - times(*left)) / (times(*right) - times(*left));
      point.seconds = left->seconds + part * (right->seconds - left->seconds);
    } else {
      const Point& only = has_right ? *right : *left;
      point.seconds = only.seconds / times(only);
    }
  }
}

double BatchCostModel::Seconds(double cost) const {
  const double at = std::clamp(std::log2(cost), 0.0, kPoints - 1.001);
  const auto low = static_cast<size_t>(at);
  const double begin = std::ldexp(1, static_cast<int>(low));
  const double part = std::max(cost / begin - 1, 0.0);
  if (!known_) return cost;
  return points_[low].seconds + part * (points_[low + 1].seconds - points_[low].seconds);
}

double BatchCostModel::Target(double answers, double beside) const {
  if (!target_) {
    return std::max(kTargetIterations * (Seconds(std::max(answers, kTargetAnswers)) + beside),
                    absl::ToDoubleSeconds(least_));
  }
  return std::max(Seconds(std::max(answers, 1.0)) + beside, absl::ToDoubleSeconds(*target_));
}

double BatchCostModel::Reach(double seconds) const {
  if (!known_) return std::max(seconds, 1.0);
  if (points_[0].seconds >= seconds) return 1;
  for (size_t i = 1; i < kPoints; ++i) {
    if (points_[i].seconds <= seconds) continue;
    const double begin = std::ldexp(1, static_cast<int>(i) - 1);
    const double low = points_[i - 1].seconds;
    return begin * (1 + (seconds - low) / (points_[i].seconds - low));
  }
  return std::ldexp(1, kPoints - 1);
}

void PlanDrafts(std::span<const BatchCandidate> candidates, int32_t max_tokens,
                const BatchCostModel* costs, std::vector<PlanItem>& plan) {
  struct Draft {
    size_t item;
    double chance;  // probability that it and all before it are right
  };
  std::vector<Draft> drafts;
  std::vector<double> expected(plan.size(), 1);  // tokens that an item gives
  double cost = 0, answers = 0;
  int64_t n_planned = 0;
  for (size_t i = 0; i < plan.size(); ++i) {
    const BatchCandidate& candidate = candidates[plan[i].candidate];
    cost += plan[i].n_tokens * candidate.token_cost;
    n_planned += plan[i].n_tokens;
    if (candidate.decoding) ++answers;
    double chance = 1;
    for (const float next : candidate.draft_probabilities) drafts.push_back({i, chance *= next});
  }
  if (drafts.empty()) return;
  // The drafts of one item stay in their order, as chances only fall along them.
  std::ranges::stable_sort(drafts, std::greater(), &Draft::chance);
  const auto seconds = [&] { return costs == nullptr ? 1 : costs->Seconds(cost); };
  const double before = seconds();
  double gain = kDraftMargin * answers / before, sum = answers;
  size_t n_chosen = 0, n_without = plan.size();
  const size_t most =
      std::min(drafts.size(), static_cast<size_t>(std::max(max_tokens - n_planned, int64_t{0})));
  for (size_t n = 1; n <= most; ++n) {
    const auto& [item, chance] = drafts[n - 1];
    cost += candidates[plan[item].candidate].token_cost;
    sum += chance;
    if (expected[item] == 1) --n_without;
    expected[item] += chance;
    const double after = seconds(), least = n_without > 0 ? 1 : *std::ranges::min_element(expected);
    if (after > before * least * kDraftMargin || sum / after <= gain) continue;
    gain = sum / after;
    n_chosen = n;
  }
  for (size_t i = 0; i < n_chosen; ++i) ++plan[drafts[i].item].n_drafted;
}

std::vector<PlanItem> PlanBatch(std::span<const BatchCandidate> candidates, int32_t max_tokens,
                                int64_t round, const BatchCostModel* costs,
                                const model::StateLayout* layout, int n_variants,
                                std::span<HostDebt> debts) {
  return Planner(candidates, max_tokens, round, layout).Plan(costs, n_variants, debts);
}

void BatchPlanner::Choose(std::span<const BatchCandidate> candidates, SteadyTime now) {
  std::vector<const model::StateLayout*> variants;  // of candidates that can have tokens
  for (const BatchCandidate& candidate : candidates) {
    if (candidate.paused || std::ranges::count(variants, candidate.layout) > 0) continue;
    variants.push_back(candidate.layout);
  }
  choice_.clear();
  debts_.clear();
  iterations_left_ = 0;
  if (variants.empty()) return;
  const auto n = static_cast<int64_t>(variants.size());
  if (host_time_ != nullptr && bounds_time_) debts_ = host_time_->debts();
  for (HostDebt& debt : debts_) {
    if (quotas_ != nullptr) debt.weight = quotas_->Weight(debt.client);
  }
  choice_ = PlanBatch(candidates, max_tokens_, n_choices_ / n, bounds(), variants[n_choices_ % n],
                      static_cast<int>(n), debts_);
  ++n_choices_;
  const bool may_stand = n == 1 && std::ranges::all_of(choice_, [&](const PlanItem& item) {
                           return candidates[item.candidate].decoding;
                         });
  if (!may_stand) return;
  iterations_left_ = kStandingIterations;
  stands_until_ = now + kStandingTime * std::ssize(candidates);
}

std::span<const PlanItem> BatchPlanner::Standing(SteadyTime now) const {
  if (iterations_left_ == 0 || now >= stands_until_) return {};
  return choice_;
}

std::vector<PlanItem> BatchPlanner::Plan(std::span<const BatchCandidate> candidates) {
  if (iterations_left_ > 0) --iterations_left_;
  if (!debts_.empty()) host_time_->Pay(debts_);
  std::vector<PlanItem> plan = choice_;
  PlanDrafts(candidates, max_tokens_, bounds(), plan);
  return plan;
}

void BatchPlanner::Observe(std::span<const BatchCandidate> candidates,
                           std::span<const PlanItem> plan, absl::Duration took) {
  RowCounts rows = {};
  double cost = 0;
  for (const PlanItem& item : plan) {
    const BatchCandidate& candidate = candidates[item.candidate];
    const double n = item.n_tokens + item.n_drafted;
    cost += n * candidate.token_cost;
    for (size_t i = 0; i < rows.size(); ++i) rows[i] += n * candidate.rows[i];
  }
  costs_.Observe(rows, cost - costs_.Cost(rows), took);
}

RowCounts BatchPlanner::row_seconds() const {
  RowCounts seconds = costs_.row_costs();
  for (double& each : seconds) each *= bounds_time_ && costs_.known() ? costs_.Seconds(1) : 0;
  return seconds;
}

}  // namespace ovq::engine
