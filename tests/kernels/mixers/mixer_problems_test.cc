// The errors of mixers for wrong fields and weights: all of them, and nothing else.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <utility>
#include <vector>

#include "base/problems.h"
#include "tests/kernels/mixers/mixer_test_util.h"

namespace ovq::kernels::test {
namespace {

// The fields of a case as a mixer reads them.
struct CaseFields {
  explicit CaseFields(const MixerCase& c)
      : type(c.type), model(MakeFields(c.model)), section(MakeFields(c.section, "section.")) {}
  absl::Status Read() const { return ReadFields(type, model, section)->problems; }
  absl::Status Unread() const {
    absl::Status unread = model.CheckAllRead();
    AddProblems(unread, section.CheckAllRead());
    return unread;
  }

  std::string type;
  Attrs model, section;
};

TEST(MixerProblems, TheConfigReadsEveryField) {
  for (const MixerCase& c : MixerCases::All()) {
    const CaseFields fields(c);
    EXPECT_TRUE(fields.Read().ok());
    EXPECT_TRUE(fields.Unread().ok()) << c.type << " " << c.name << ": " << fields.Unread();
  }
}

// A wrong value neither makes other fields look wrong nor keeps them from being read.
TEST(MixerProblems, AWrongFieldIsOneProblem) {
  const Attrs::Value wrong = std::vector<std::string>{"x"};
  for (const MixerCase& c : MixerCases::All()) {
    for (const auto* part : {&c.model, &c.section}) {
      for (const auto& [name, value] : *part) {
        CaseFields fields(c);
        const bool in_model = part == &c.model;
        (in_model ? fields.model : fields.section).Set(name, wrong);
        const std::vector<absl::Status> problems = SplitProblems(fields.Read());
        if (problems.empty()) continue;  // an accepted field without effect
        ASSERT_EQ(problems.size(), 1u) << c.type << " " << c.name << ": " << name;
        EXPECT_THAT(std::string(problems[0].message()),
                    testing::StartsWith((in_model ? "" : "section.") + name + ": expected"));
        EXPECT_TRUE(fields.Unread().ok()) << name << ": " << fields.Unread();
      }
    }
  }
}

using Asked = std::vector<std::pair<std::string, std::string>>;  // names with shapes

Asked AskedBy(const MixerCase& c, const absl::Status& so_far) {
  const auto context = MakeContext(Device::kCpu);
  context->BindThread();
  const WeightSource random = RandomWeights(c);
  Asked asked;
  const WeightSource source = [&](const std::string& name, const Shape& shape) {
    asked.emplace_back(name, shape.ToString());
    return random(name, shape);
  };
  const auto config = ReadFields(c.type, MakeFields(c.model), MakeFields(c.section));
  WeightReader weights(source, c.compute_dtype, *context, "", so_far);
  const auto mixer = FindMixer(c.type)->make({.layer = 0,
                                              .state = {.config = *config,
                                                        .d_model = kModelDim,
                                                        .kv_dtype = DType::kF32,
                                                        .device = Device::kCpu},
                                              .weights = weights,
                                              .compute_dtype = c.compute_dtype,
                                              .context = *context});
  EXPECT_EQ(mixer.status(), so_far) << c.type << " " << c.name;
  return asked;
}

// So a tensor that is missing hides no other.
TEST(MixerProblems, AfterAnErrorTheSameWeightsAreAskedFor) {
  for (const MixerCase& c : MixerCases::All()) {
    EXPECT_EQ(AskedBy(c, absl::NotFoundError("another")), AskedBy(c, absl::OkStatus()))
        << c.type << " " << c.name;
  }
}

}  // namespace
}  // namespace ovq::kernels::test
