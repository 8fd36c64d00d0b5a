// Forms for tests of constrained answers.
#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "server/engine/common/answer_constraint.h"
#include "tests/server/engine/fake_model.h"

namespace ovq::engine::test {

using Constraint = std::shared_ptr<const AnswerConstraint>;

inline std::shared_ptr<ByteBudget> SomeMemory() {
  return std::make_shared<ByteBudget>(size_t{64} << 20);
}

inline Constraint Compiled(const AnswerForm& form) {
  absl::StatusOr<Constraint> made = AnswerConstraint::Make(form, {}, SomeMemory(), "");
  EXPECT_TRUE(made.ok()) << made.status();
  return made.ok() ? *made : nullptr;
}

// Texts of few letters, many of them without a choice.
inline AnswerForm RandomForm(std::mt19937& random, int depth) {
  const auto upto = [&](int most) { return static_cast<int>(random() % (most + 1u)); };
  const auto literal = [&](int least) {
    std::string text;
    for (int i = upto(10) + least; i > 0; --i) text += static_cast<char>('a' + upto(3));
    return AnswerForm::Literal(text);
  };
  const auto parts = [&](int n) {
    std::vector<AnswerForm> all;
    for (int i = 0; i < n; ++i) all.push_back(RandomForm(random, depth - 1));
    return all;
  };
  switch (depth == 0 ? 0 : upto(7)) {
    case 1:
    case 2:
      return AnswerForm::Choice(parts(2 + upto(2)));
    case 3:
    case 4:
      return AnswerForm::Sequence(parts(2 + upto(2)));
    case 5: {
      const int least = upto(2);
      const bool bound = upto(1) == 0;
      return AnswerForm::Repeat(literal(1), least,
                                bound ? std::optional<int64_t>(least + upto(3)) : std::nullopt);
    }
    case 6:
      return AnswerForm::Repeat(AnswerForm::Choice({literal(1), literal(1)}), 1 + upto(2), 40);
    case 7:
      return upto(1) == 0 ? AnswerForm::Through(std::string(1, static_cast<char>('a' + upto(3))))
                          : AnswerForm::Without("bb");
    default:
      return literal(1);
  }
}

inline GenerateRequest Constrained(Constraint constraint, int64_t max_tokens, uint64_t seed = 1) {
  GenerateRequest request = SampleRequest(SomeTokens(20, 3), max_tokens, seed);
  request.constraint = std::move(constraint);
  return request;
}

inline EngineOptions FormOptions(bool forces, Speculation speculation = Speculation::kOff) {
  EngineOptions options;
  options.force_tokens = forces;
  options.speculation = speculation;
  return options;
}

}  // namespace ovq::engine::test
