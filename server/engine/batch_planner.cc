#include "server/engine/batch_planner.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <numeric>

#include "absl/container/flat_hash_map.h"

namespace ovq {
namespace {

constexpr double kRounding = 1e-9;
// Of observations at one cost, after the first ones: a step that was interrupted counts little.
constexpr double kLearn = 0.125;
constexpr double kMostSurprise = 2;

struct Need {
  double rows = 0;  // wanted, at most those of a step
  double cost = 0;  // of these

  double row_cost() const { return cost / rows; }
  void Add(const Need& other) {
    rows += other.rows;
    cost += other.cost;
  }
};

// A call that decodes: neighbours.
struct Call : Need {
  int first = 0, n = 0;  // sequences
};

struct Client {
  double weight = 1;
  std::vector<Call> calls;    // that decode, in the memory of this step
  Need prompts;               // in it, all together
  std::vector<int> prompted;  // their sequences
  Need elsewhere;             // in other memories
  Need all;                   // wanted here
};

// What each gets of `amount`, by weight: none more than it wants, and what it leaves goes to the
// others.
std::vector<double> Shares(double amount, std::span<const double> wants,
                           std::span<const double> weights) {
  // Where all want more than their parts, as many calls of one client do, there is nothing to sort.
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
  Planner(std::span<const StepSequence> sequences, int32_t max_rows, int64_t turn,
          const StateLayout* memory)
      : sequences_(sequences), max_rows_(max_rows), turn_(turn), memory_(memory) {
    Group();
  }

  std::vector<PlanItem> Plan(const BatchCostModel* costs, int n_memories) {
    double amount = 0;
    for (const Client& client : clients_) amount += client.all.cost;
    if (amount == 0) return {};
    const double seconds = costs != nullptr ? TimeBound(*costs, n_memories) : 0;
    if (costs != nullptr) amount = std::min(amount, costs->Reach(seconds));
    std::vector<double> parts = Parts(amount);
    if (costs != nullptr) Lower(costs->Reach(kFilled * seconds), parts);
    constexpr double kGolden = 0.6180339887498949;  // spreads turns evenly
    carried_ = std::fmod(static_cast<double>(turn_) * kGolden, 1);
    for (size_t i = 0; i < clients_.size(); ++i) ShareClient(clients_[i], parts[i]);
    if (plan_.empty()) GiveOne();
    return std::move(plan_);
  }

 private:
  void Group() {
    absl::flat_hash_map<std::string_view, size_t> known;
    int64_t last_order = -1;  // of the call whose sequence was the last that decodes
    std::string_view last_client;
    size_t last = 0;  // its index
    for (size_t i = 0; i < sequences_.size(); ++i) {
      const StepSequence& sequence = sequences_[i];
      if (sequence.paused) continue;
      if (clients_.empty() || sequence.client != last_client) {
        const auto [at, is_new] = known.try_emplace(sequence.client, clients_.size());
        if (is_new) clients_.emplace_back().weight = sequence.weight;
        last_client = sequence.client;
        last = at->second;
      }
      Client& client = clients_[last];
      if (memory_ != nullptr && sequence.state->layout != memory_) {
        Add(sequence, client.elsewhere);
      } else if (!sequence.decoding) {
        client.prompted.push_back(static_cast<int>(i));
        Add(sequence, client.prompts);
      } else {
        if (client.calls.empty() || last_order != sequence.order) {
          client.calls.emplace_back().first = static_cast<int>(i);
        }
        last_order = sequence.order;
        ++client.calls.back().n;
        Add(sequence, client.calls.back());
      }
    }
    for (Client& client : clients_) {
      client.all = client.prompts;
      for (const Call& call : client.calls) client.all.Add(call);
    }
  }
  void Add(const StepSequence& sequence, Need& need) const {
    const double rows =
        std::min(static_cast<double>(sequence.tokens.size()), max_rows_ - need.rows);
    need.Add({.rows = rows, .cost = rows * sequence.row_cost});
  }

  // How long a step may take that keeps the promise to every client, in whatever memory.
  double TimeBound(const BatchCostModel& costs, int n_memories) const {
    double weights = 0;
    for (const Client& client : clients_) weights += client.weight;
    double seconds = std::max(kLongStepSeconds, kLongStepRows * costs.Seconds(1)), answers = 0;
    for (const Client& client : clients_) {
      for (const Call& call : client.calls) answers += call.cost;
      Need need = client.all;
      need.Add(client.elsewhere);
      const double cost = need.cost * std::min(1.0, max_rows_ / need.rows);
      seconds = std::min(seconds, costs.Seconds(cost) * weights / client.weight);
    }
    if (answers > 0) seconds = std::min(seconds, costs.Target(answers) * n_memories);
    return seconds / n_memories;
  }

  // Of the clients, in cost.
  std::vector<double> Parts(double amount) const {
    std::vector<double> wants, weights;
    for (const Client& client : clients_) {
      wants.push_back(client.all.cost);
      weights.push_back(client.weight);
    }
    // Rows of unequal cost: less of it all until the rows fit, or nearly.
    constexpr int kRounds = 16;
    std::vector<double> parts;
    for (int round = 0; round < kRounds; ++round) {
      parts = Shares(amount, wants, weights);
      double rows = 0;
      for (size_t i = 0; i < clients_.size(); ++i) {
        if (parts[i] > 0) rows += parts[i] / clients_[i].all.row_cost();
      }
      if (rows <= max_rows_ + kRounding) break;
      amount *= max_rows_ / rows;
    }
    return parts;
  }
  // Who wants more than its part has less of it, until all together are `amount`, though never less
  // than who has all that it wants.
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
    if (least == 0) return;  // it would be nobody's gain
    for (size_t i = 0; i < clients_.size(); ++i) {
      const Client& client = clients_[i];
      if (parts[i] == client.all.cost) continue;
      parts[i] = std::min(parts[i], std::max(least, amount / weights) * client.weight);
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
      GiveInTurn(call, Rounded(parts[i] / call.row_cost()));
      amount -= parts[i];
    }
    if (reads) GivePrompts(client, Rounded(amount / client.prompts.row_cost()));
  }
  // Whole rows, so that over the steps each gets what is its part: what was cut off one goes to the
  // next.
  int64_t Rounded(double rows) {
    const double whole = std::floor(rows + kRounding);
    carried_ += std::max(rows - whole, 0.0);
    const double carry = std::floor(carried_ + kRounding);
    carried_ -= carry;
    return static_cast<int64_t>(whole + carry);
  }
  // No part was a row: one client's.
  void GiveOne() {
    const size_t n = clients_.size();
    for (size_t i = 0; i < n && plan_.empty(); ++i) {
      const Client& client = clients_[(static_cast<uint64_t>(turn_) + i) % n];
      if (!client.calls.empty()) {
        GiveInTurn(client.calls[static_cast<uint64_t>(turn_) % client.calls.size()], 1);
      } else if (!client.prompted.empty()) {
        GivePrompts(client, 1);
      }
    }
  }
  int64_t Given(const Need& need, int64_t n_rows) {
    n_rows =
        std::min({n_rows, max_rows_ - n_planned_, static_cast<int64_t>(std::llround(need.rows))});
    n_planned_ += n_rows;
    return n_rows;
  }
  // Consecutive turns continue where the last one stopped, round and round.
  void GiveInTurn(const Call& call, int64_t n_rows) {
    const int64_t n = call.n, chosen = Given(call, n_rows);
    const int64_t first = chosen == n ? 0 : turn_ % n * chosen % n;
    for (int64_t i = 0; i < chosen; ++i) {
      plan_.push_back({call.first + static_cast<int>((first + i) % n), 1});
    }
  }
  void GivePrompts(const Client& client, int64_t n_rows) {
    n_rows = Given(client.prompts, n_rows);
    // Of those before its last, each gets a row at least.
    std::vector<int> members = client.prompted;
    const auto n_served = std::min<int64_t>(n_rows, std::ssize(members));
    std::ranges::partial_sort(members, members.begin() + n_served, {}, [&](int i) {
      const StepSequence& sequence = sequences_[i];
      return std::pair(sequence.consumed / kPromptTurn, sequence.order);
    });
    members.resize(static_cast<size_t>(n_served));
    // All of a turn first, then what is left.
    std::vector<int64_t> rows(members.size());
    for (const bool in_turn : {true, false}) {
      for (size_t i = 0; i < members.size(); ++i) {
        const StepSequence& sequence = sequences_[members[i]];
        int64_t most = std::ssize(sequence.tokens) - rows[i];
        if (in_turn) most = std::min(most, kPromptTurn - sequence.consumed % kPromptTurn);
        const int64_t given = std::min(most, n_rows);
        rows[i] += given;
        n_rows -= given;
      }
    }
    for (size_t i = 0; i < members.size(); ++i) {
      if (rows[i] > 0) plan_.push_back({members[i], static_cast<int32_t>(rows[i])});
    }
  }

  const std::span<const StepSequence> sequences_;
  const int64_t max_rows_;
  const int64_t turn_;
  const StateLayout* const memory_;
  std::vector<Client> clients_;
  double carried_ = 0;  // of rows
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

void BatchCostModel::FillGaps() {
  const Point* left = nullptr;  // the last point that was seen
  for (Point& point : points_) {
    if (point.seen >= 1) {
      left = &point;
      continue;
    }
    const auto right = std::find_if(&point, points_.data() + kPoints,
                                    [](const Point& other) { return other.seen >= 1; });
    const auto times = [&](const Point& other) {  // its cost, in those of the point
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

double BatchCostModel::Target(double answers) const {
  if (!target_) return kTargetSteps * Seconds(std::max(answers, kTargetAnswers));
  return std::max(Seconds(std::max(answers, 1.0)), absl::ToDoubleSeconds(*target_));
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

void PlanDrafts(std::span<const StepSequence> sequences, int32_t max_rows,
                const BatchCostModel* costs, std::vector<PlanItem>& plan) {
  struct Draft {
    size_t item;
    double chance;  // that it and all before it are right
  };
  std::vector<Draft> drafts;
  std::vector<double> tokens(plan.size(), 1);  // that an item is to give
  double cost = 0, answers = 0;
  int64_t rows = 0;
  for (size_t i = 0; i < plan.size(); ++i) {
    const StepSequence& sequence = sequences[plan[i].id];
    cost += plan[i].n_rows * sequence.row_cost;
    rows += plan[i].n_rows;
    if (sequence.decoding) ++answers;
    double chance = 1;
    for (const float next : sequence.guess.probabilities) drafts.push_back({i, chance *= next});
  }
  if (drafts.empty()) return;
  // Of one item they are in their order, as probabilities only fall.
  std::ranges::stable_sort(drafts, std::greater(), &Draft::chance);
  const auto seconds = [&] { return costs == nullptr ? 1 : costs->Seconds(cost); };
  const double before = seconds();
  double gain = kDraftMargin * answers / before, sum = answers;
  size_t n_chosen = 0, n_without = plan.size();
  const size_t most =
      std::min(drafts.size(), static_cast<size_t>(std::max(max_rows - rows, int64_t{0})));
  for (size_t n = 1; n <= most; ++n) {
    const auto& [item, chance] = drafts[n - 1];
    cost += sequences[plan[item].id].row_cost;
    sum += chance;
    if (tokens[item] == 1) --n_without;
    tokens[item] += chance;
    const double after = seconds(), least = n_without > 0 ? 1 : *std::ranges::min_element(tokens);
    if (after > before * least * kDraftMargin || sum / after <= gain) continue;
    gain = sum / after;
    n_chosen = n;
  }
  for (size_t i = 0; i < n_chosen; ++i) ++plan[drafts[i].item].n_drafted;
}

std::vector<PlanItem> PlanBatch(std::span<const StepSequence> sequences, int32_t max_rows,
                                int64_t turn, const BatchCostModel* costs,
                                const StateLayout* memory, int n_memories) {
  return Planner(sequences, max_rows, turn, memory).Plan(costs, n_memories);
}

}  // namespace ovq
