// EditedModel: a golden model that a test changes before it loads it.
#pragma once

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "model/weights.h"
#include "tests/model/golden_util.h"

namespace ovq::model::test {

// A tensor of any dtype.
struct TypedTensor {
  std::string dtype;
  std::vector<int> shape;
  std::string bytes;
};

// A copy of a golden model whose config and tensors a test may change before loading it.
class EditedModel {
 public:
  explicit EditedModel(const std::string& name) {
    const Golden golden = LoadGolden(name);
    config = nlohmann::json::parse(ReadBytes(golden.folder + "/config.json"));
    const auto file = OpenSafetensors(golden.folder + "/model.safetensors");
    for (const auto& [tensor, stored] : file->tensors()) {
      nlohmann::json shape = nlohmann::json::array();
      for (int i = 0; i < stored.shape.rank(); ++i) shape.push_back(stored.shape[i]);
      tensors[tensor] = {shape, Text(stored.bytes)};
    }
  }
  EditedModel Copy() const {
    EditedModel copy;
    copy.config = config;
    copy.tensors = tensors;
    return copy;
  }
  absl::StatusOr<std::unique_ptr<LanguageModel>> Load(
      const ModelOptions& options = kSmallSessions) const {
    const TempFolder folder;
    Write(folder);
    return LanguageModel::Load(folder.path(), options, *context);
  }
  void Write(const TempFolder& folder) const {
    nlohmann::json header;
    std::string data;
    for (const auto& [tensor, part] : tensors) {
      header[tensor] = {{"dtype", "F32"},
                        {"shape", part.first},
                        {"data_offsets", {data.size(), data.size() + part.second.size()}}};
      data += part.second;
    }
    for (const auto& [tensor, part] : typed) {
      header[tensor] = {{"dtype", part.dtype},
                        {"shape", part.shape},
                        {"data_offsets", {data.size(), data.size() + part.bytes.size()}}};
      data += part.bytes;
    }
    for (const auto& [tensor, dtype] : others) {
      header[tensor] = {
          {"dtype", dtype}, {"shape", {0}}, {"data_offsets", {data.size(), data.size()}}};
    }
    std::string text = header.dump();
    text.resize((text.size() + 7) / 8 * 8 + shift, ' ');
    folder.Write("model.safetensors", SafetensorsBytes(text, data));
    folder.Write("config.json", config.dump());
  }
  void ExpectError(absl::StatusCode code, const std::string& text) const {
    const absl::Status status = Load().status();
    EXPECT_EQ(status.code(), code) << status;
    EXPECT_THAT(Message(status), ::testing::HasSubstr(text));
  }

  nlohmann::json config;
  std::map<std::string, std::pair<nlohmann::json, std::string>> tensors;
  std::map<std::string, TypedTensor> typed;   // tensors of other dtypes, by name
  std::map<std::string, std::string> others;  // empty tensors of other dtypes, by name
  size_t shift = 0;  // blanks behind the header, so that tensors begin at unaligned bytes
  std::unique_ptr<kernels::DeviceContext> context = BoundContext(kernels::Device::kCpu);

 private:
  EditedModel() = default;
};

// The policy of this name in --memory.
inline const CachePolicy& Policy(std::string_view name) { return *FindCachePolicy(name); }

// Expects that a golden model with these changes of its config is refused, with an error in
// config.json that continues with `text`.
inline void ExpectRefused(const char* name, const nlohmann::json& changes,
                          const std::string& text) {
  EditedModel model(name);
  model.config.merge_patch(changes);
  model.ExpectError(absl::StatusCode::kInvalidArgument, "config.json: " + text);
}

inline std::vector<float> Logits(const LanguageModel& model, kernels::DeviceContext& context) {
  Session session(model, context, {1, 2, 3, 4, 5}, 24);
  session.Feed(5);
  return session.logits();
}
inline std::vector<float> ComputeLogits(const EditedModel& model) {
  const auto loaded = model.Load();
  Check(loaded.ok(), Message(loaded.status()).c_str());
  return Logits(**loaded, *model.context);
}

inline std::string Bytes(const std::vector<float>& values) {
  return {reinterpret_cast<const char*>(values.data()), values.size() * sizeof(float)};
}

}  // namespace ovq::model::test
