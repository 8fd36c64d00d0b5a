#include "server/calls/constraints.h"

#include <algorithm>
#include <chrono>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "server/engine/common/error_facts.h"
#include "server/engine/common/limits.h"

namespace ovq::server {
namespace {

using Source = constraint::Source;
using engine::AnswerConstraint;

constraint::Limits ConstraintLimits() {
  return {.source_bytes = static_cast<size_t>(engine::kMaxConstraintBytes)};
}

absl::StatusOr<std::optional<PlacedSource>> SourceText(Source::Kind kind, const std::string& text,
                                                       std::string field) {
  if (std::ssize(text) > engine::kMaxConstraintBytes) {
    return engine::BadField(field, absl::StrCat("at most ", engine::kMaxConstraintBytes, " bytes"),
                            text.size());
  }
  return PlacedSource{.source = {.kind = kind, .text = text}, .field = std::move(field)};
}

absl::StatusOr<std::optional<PlacedSource>> ChoiceSource(const v1::Choices& from,
                                                         std::string field) {
  const int64_t n = from.texts_size();
  if (n == 0 || n > engine::kMaxChoices) {
    return engine::BadField(field, absl::StrCat("1 to ", engine::kMaxChoices, " texts"), n);
  }
  int64_t bytes = 0;
  for (const std::string& text : from.texts()) bytes += std::ssize(text);
  if (bytes > engine::kMaxConstraintBytes) {
    return engine::BadField(field, absl::StrCat("at most ", engine::kMaxConstraintBytes, " bytes"),
                            bytes);
  }
  return PlacedSource{.source = {.kind = Source::Kind::kChoice,
                                 .choices = {from.texts().begin(), from.texts().end()}},
                      .field = std::move(field)};
}

// The error of a form by the field of the source that it is of, as callers name it. The log gets no
// text of theirs.
absl::Status PlacedError(const absl::Status& status, const std::vector<PlacedSource>& sources) {
  const bool refused = absl::IsInvalidArgument(status) || absl::IsResourceExhausted(status);
  if (!refused || engine::GetErrorFacts(status).reason) return status;
  std::string field = "sampling.constraint", why(status.message());
  for (const PlacedSource& source : sources) {
    constraint::Grammar grammar;
    const auto added = constraint::AddSource(source.source, grammar, ConstraintLimits());
    if (added.ok() && sources.size() > 1) continue;
    field = source.field;
    if (!added.ok()) why = std::string(added.status().message());
    const bool defined = why.starts_with("#/$defs") || why.starts_with("#/definitions");
    if (why.starts_with('#') && !defined) why.replace(0, 1, source.pointer);
    break;
  }
  return engine::WithLogText(
      engine::WithFacts(absl::InvalidArgumentError(absl::StrCat(field, ": ", why)),
                        {.field = field}),
      absl::StrCat(field, ": cannot be kept"));
}

ConstraintRefusal RefusalCause(const absl::Status& status) {
  if (absl::IsInvalidArgument(status)) return ConstraintRefusal::kForm;
  return engine::GetErrorFacts(status).reason ? ConstraintRefusal::kMemory
                                              : ConstraintRefusal::kSize;
}

}  // namespace

absl::StatusOr<std::optional<PlacedSource>> ReadConstraint(const v1::SamplingParams& from,
                                                           const std::string& prefix) {
  if (!from.has_constraint()) return std::nullopt;
  const v1::Constraint& constraint = from.constraint();
  const std::string path = absl::StrCat(prefix, "sampling.constraint");
  switch (constraint.kind_case()) {
    case v1::Constraint::kJsonSchema:
      return SourceText(Source::Kind::kJsonSchema, constraint.json_schema(),
                        absl::StrCat(path, ".json_schema"));
    case v1::Constraint::kJsonObject:
      if (!constraint.json_object()) break;
      return PlacedSource{.source = {.kind = Source::Kind::kJsonObject},
                          .field = absl::StrCat(path, ".json_object")};
    case v1::Constraint::kRegex:
      return SourceText(Source::Kind::kRegex, constraint.regex(), absl::StrCat(path, ".regex"));
    case v1::Constraint::kChoice:
      return ChoiceSource(constraint.choice(), absl::StrCat(path, ".choice"));
    case v1::Constraint::kGrammar:
      return SourceText(Source::Kind::kGrammar, constraint.grammar(),
                        absl::StrCat(path, ".grammar"));
    case v1::Constraint::KIND_NOT_SET:
      break;
  }
  return engine::BadField(path, "json_schema, json_object: true, regex, choice or grammar",
                          "none of them");
}

ConstraintCache::ConstraintCache(size_t bytes, Metrics& metrics)
    : bytes_(bytes), budget_(std::make_shared<ByteBudget>(bytes)), metrics_(metrics) {}

absl::StatusOr<std::shared_ptr<const AnswerConstraint>> ConstraintCache::Get(
    const FramedForm& form, const std::string& client) {
  const std::string key = engine::EncodeForm(form.form);
  if (std::shared_ptr<const AnswerConstraint> found = Find(key)) {
    metrics_.constraint_hits.Increment();
    return found;
  }
  const auto start = std::chrono::steady_clock::now();
  absl::StatusOr<std::shared_ptr<const AnswerConstraint>> made =
      AnswerConstraint::Make(form.form, ConstraintLimits(), budget_, client);
  metrics_.constraint_compile.Observe(
      std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count());
  if (!made.ok()) {
    metrics_.ConstraintRefused(RefusalCause(made.status()));
    return PlacedError(made.status(), form.sources);
  }
  Keep(key, client, *made);
  return made;
}

std::shared_ptr<const AnswerConstraint> ConstraintCache::Find(const std::string& key) {
  absl::MutexLock lock(&mutex_);
  const auto found = entries_.find(key);
  if (found == entries_.end()) return nullptr;
  uses_.splice(uses_.begin(), uses_, found->second.use);
  return found->second.constraint;
}

void ConstraintCache::Keep(const std::string& key, const std::string& client,
                           std::shared_ptr<const AnswerConstraint> constraint) {
  absl::MutexLock lock(&mutex_);
  if (entries_.contains(key)) return;  // another call has compiled it meanwhile
  const size_t bytes = constraint->bytes();
  uses_.push_front(key);
  entries_[key] = {.client = client, .constraint = std::move(constraint), .use = uses_.begin()};
  held_[client] += bytes;
  total_ += bytes;
  while (held_.contains(client) && held_[client] > bytes_ / 4) DropOldest(client);
  while (total_ > bytes_ / 2) {
    const auto most = std::ranges::max_element(held_, {}, [](const auto& e) { return e.second; });
    DropOldest(most->first);
  }
  metrics_.constraint_bytes.Set(static_cast<double>(total_));
}

void ConstraintCache::DropOldest(const std::string& client) {
  const auto mine = [&](const std::string& key) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    return entries_.at(key).client == client;
  };
  auto use = uses_.end();
  for (auto it = uses_.begin(); it != uses_.end(); ++it) {
    if (mine(*it)) use = it;
  }
  const auto entry = entries_.find(*use);
  const size_t bytes = entry->second.constraint->bytes();
  total_ -= bytes;
  const auto held = held_.find(client);
  held->second -= bytes;
  if (held->second == 0) held_.erase(held);
  entries_.erase(entry);
  uses_.erase(use);
}

}  // namespace ovq::server
