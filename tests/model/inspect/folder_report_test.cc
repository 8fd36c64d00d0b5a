#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "kernels/common/state_memory.h"
#include "model/cache_policy.h"
#include "model/inspect/inspect.h"
#include "model/load_config.h"
#include "tests/folders.h"
#include "tests/model/edited_model.h"

namespace ovq::model::test {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::StartsWith;
using ::testing::UnorderedElementsAre;
using OrderedJson = nlohmann::ordered_json;

OrderedJson Report(const std::string& folder, InspectOptions options = {}) {
  options.folder = folder;
  return InspectFolder(options);
}

std::vector<std::string> Problems(const OrderedJson& report) { return report["problems"]; }
std::string Verdict(const OrderedJson& report) { return report["verdict"]; }
std::vector<std::string> ProblemsIn(const std::string& folder) { return Problems(Report(folder)); }

std::vector<std::string> ProblemsWith(const EditedModel& model) {
  const TempFolder folder;
  model.Write(folder);
  return ProblemsIn(folder.path());
}

TEST(FolderReport, SaysThatSlotsHaveTheVarianceOfTheirKeys) {
  const auto notes = [](const char* name) -> std::vector<std::string> {
    EditedModel model(name);
    model.config["ovq"]["variance"] = 0.5;
    const TempFolder folder;
    model.Write(folder);
    const OrderedJson report = Report(folder.path());
    EXPECT_THAT(Problems(report), IsEmpty()) << name;
    return report["notes"];
  };
  const char* const gain = " gain 0.5 times what the variance of their keys gives";
  EXPECT_THAT(notes("sw-ovq"), ElementsAre(absl::StrCat("ovq.variance: scores of slots", gain)));
  EXPECT_THAT(
      notes("sw-full"),
      ElementsAre(absl::StrCat("ovq.variance: scores of slots of --memory closest-pair", gain)));
  EXPECT_THAT(Report(LoadGolden("sw-ovq").folder)["notes"], IsEmpty());
}

// The report agrees with the loaded model.
TEST(FolderReport, IsWhatTheLoadedModelIs) {
  const std::string folder = LoadGolden("sw-ovq").folder;
  InspectOptions options;
  options.positions = {1, 100, 4000};
  options.slot_caps = {16, 24};
  options.state_dtype = kernels::DType::kBF16;
  const OrderedJson report = Report(folder + "/", options);
  EXPECT_THAT(Problems(report), IsEmpty());
  EXPECT_EQ(report["folder"], folder);
  const auto context = BoundContext(kernels::Device::kCpu);
  ModelOptions model_options;
  model_options.state_dtype = kernels::DType::kBF16;
  const auto model = LanguageModel::Load(folder, model_options, *context);
  ASSERT_TRUE(model.ok()) << model.status();
  EXPECT_EQ(report["parameters"], (*model)->parameters());
  EXPECT_EQ(report["active_parameters"], (*model)->parameters());
  EXPECT_EQ(report["weight_bytes"], (*model)->parameters() * sizeof(float));
  std::vector<std::string> types;
  for (const OrderedJson& run : report["layers"]) {
    for (int i = run["first"]; i <= run["last"]; ++i) types.push_back(run["type"]);
  }
  EXPECT_EQ(types, (*model)->config().layer_types());
  EXPECT_EQ(report["tensor_types"], OrderedJson({{"F32", report["tensors"]}}));
  ASSERT_EQ(report["sessions"].size(), 6u);
  for (const OrderedJson& s : report["sessions"]) {
    const int64_t position = s["position"], cap = s["slot_cap"];
    const StateLayout& layout = (*model)->layout();
    EXPECT_EQ(s["state_bytes"], layout.live_bytes_at(position, cap));
    EXPECT_EQ(s["memory_bytes"], layout.bytes_at(position, cap));
    EXPECT_EQ(s["live_slots"], layout.LiveSlotsAt(position, cap));
  }
}

TEST(FolderReport, ExpertsThatATokenDoesNotReadAreCounted) {
  const std::string folder = LoadGolden("published/granitemoehybrid-moe").folder;
  const OrderedJson report = Report(folder);
  const int64_t idle = 4 * (8 - 2) * 3 * 20 * 32;
  EXPECT_EQ(report["active_parameters"], report["parameters"].get<int64_t>() - idle);
  const std::string text = ReportText(report);
  EXPECT_THAT(text, HasSubstr(absl::StrCat(", of which a token reads ",
                                           report["active_parameters"].get<int64_t>(), "\n")));
  // Experts of 20 have so few outputs that they stay as they are; those of 32 from 20 too.
  ASSERT_EQ(report["memory"].size(), 2u);
  for (const OrderedJson& memory : report["memory"]) {
    EXPECT_EQ(memory["active_bytes"], memory["bytes"].get<int64_t>() - 4 * idle);
  }
  EXPECT_LT(report["memory"][1]["bytes"], report["memory"][0]["bytes"]);
  const auto context = BoundContext(kernels::Device::kCpu);
  EXPECT_EQ(report["memory"][0]["bytes"], LoadModel(folder, *context)->weight_count().bytes);
  EXPECT_THAT(text, HasSubstr(absl::StrCat("bytes with --weights int8, of which a token reads ",
                                           report["memory"][1]["active_bytes"].get<int64_t>())));
}

TEST(FolderReport, ModelsThatAreRightHaveNoProblem) {
  const std::string golden = GoldenFolder();
  int n_models = 0;
  for (const std::string& parent :
       {golden + "/native", golden + "/kvm", golden + "/published", ModelsFolder()}) {
    for (const auto& entry : std::filesystem::directory_iterator(parent)) {
      if (!LoadConfig(entry.path()).ok()) continue;  // a family that is not supported
      EXPECT_THAT(ProblemsIn(entry.path()), IsEmpty()) << entry.path();
      ++n_models;
    }
  }
  EXPECT_GT(n_models, 8);
}

TEST(FolderReport, TensorsMissingTooManyAndOfAnotherShape) {
  EditedModel model("sw-ovq");
  model.tensors.erase("model.layers.1.self_attn.beta");
  model.tensors.erase("model.norm.weight");
  model.tensors["model.layers.2.mlp.down_proj.weight"].first = {96, 64};
  model.tensors["model.layers.0.self_attn.q_proj.bias"] = {{1}, std::string(4, '\0')};
  model.config["nonsense"] = 1;
  EXPECT_THAT(
      ProblemsWith(model),
      UnorderedElementsAre(
          "config.json: nonsense: unknown field",
          StartsWith("model.safetensors: tensor 'model.layers.1.self_attn.beta' is missing; "),
          "model.safetensors: tensor 'model.norm.weight' is missing; expected [64]",
          "model.safetensors: model.layers.2.mlp.down_proj.weight: expected [64, 96], got [96, 64]",
          StartsWith("model.safetensors: tensor 'model.layers.0.self_attn.q_proj.bias' [1]: no")));
}

// The verdict states how a server would serve the folder.
TEST(FolderReport, Verdicts) {
  const auto report = [](const char* name) {
    const OrderedJson report = Report(LoadGolden(name).folder);
    EXPECT_THAT(Problems(report), IsEmpty()) << name;
    return report;
  };
  EXPECT_THAT(Verdict(report("sw-ovq")), StartsWith("served, in bounded memory"));
  EXPECT_THAT(Verdict(report("kvm/gptalpha-nope-swa")), StartsWith("served exactly"));
  const struct {
    const char *name, *cache_policy;
  } kBounded[] = {{"published/granitemoehybrid-dense", "closest-pair"},
                  {"published/qwen3_5-tied", "closest-pair-all"}};
  for (const auto& [name, cache_policy] : kBounded) {
    const OrderedJson bounded = report(name);
    EXPECT_THAT(Verdict(bounded),
                HasSubstr(absl::StrCat("bounded with --memory ", cache_policy, ", exact up to")));
    ASSERT_EQ(bounded["sessions"].size(), 12u);  // three lengths; exact, and with three caps
    for (size_t i = 0; i < 12; ++i) {
      const OrderedJson& s = bounded["sessions"][i];
      EXPECT_EQ(s["memory"], std::string(i < 3 ? "model" : cache_policy));
      EXPECT_EQ(s["position"], (std::vector<int64_t>{32768, 131072, 1048576})[i % 3]);
      EXPECT_EQ(s["live_slots"], i < 3 ? 0 : (std::vector<int64_t>{2048, 8192, 32768})[i / 3 - 1]);
    }
    EXPECT_GT(bounded["sessions"][2]["state_bytes"], bounded["sessions"][11]["state_bytes"]);
  }
  const OrderedJson pictures = report("published/qwen3_5-tied");
  EXPECT_GT(pictures["skipped_tensors"], 0);
  EXPECT_EQ(pictures["weight_bytes"], pictures["parameters"].get<size_t>() * sizeof(float));
  EXPECT_THAT(ReportText(pictures),
              HasSubstr(absl::StrCat("\nskipped     ", pictures["skipped_bytes"].get<int64_t>(),
                                     " bytes in ", pictures["skipped_tensors"].get<int64_t>(),
                                     " tensors\n")));
  EXPECT_EQ(report("published/granitemoehybrid-dense")["skipped_tensors"], 0);
  EditedModel wrong("published/granitemoehybrid-dense");
  wrong.config["num_local_experts"] = 8;
  const TempFolder folder;
  wrong.Write(folder);
  EXPECT_EQ(Verdict(Report(folder.path())), "not served: it has problems");
}

// A layer with an invalid field is left out, the others are reported in full.
TEST(FolderReport, WrongLayersAreLeftOut) {
  EditedModel model("sw-ovq");
  model.config["ovq"]["chunk_size"] = 1;
  model.tensors.erase("model.norm.weight");
  model.tensors["nobodys"] = {{1}, std::string(4, '\0')};
  const TempFolder folder;
  model.Write(folder);
  const OrderedJson report = Report(folder.path());
  EXPECT_THAT(Problems(report),
              ElementsAre(StartsWith("config.json: ovq.chunk_size: expected an integer in [2, "),
                          StartsWith("model.safetensors: tensor 'model.norm.weight' is missing")));
  EXPECT_THAT(report["sessions"], IsEmpty());
  EXPECT_THAT(report["notes"].get<std::vector<std::string>>(),
              ElementsAre("not checked before config.json is right: tensors of layers 1, 3, "
                          "tensors that nobody uses, states"));
}

TEST(FolderReport, WithoutAShapeTensorsAreNotHeldAgainstIt) {
  EditedModel model("sw-ovq");
  model.config.erase("hidden_size");
  model.tensors.erase("model.norm.weight");
  EXPECT_THAT(ProblemsWith(model), ElementsAre(StartsWith("config.json: hidden_size: expected")));
}

TEST(FolderReport, FilesThatAreMissing) {
  const TempFolder folder;
  EXPECT_THAT(ProblemsIn(folder.path()),
              ElementsAre("config.json: No such file or directory",
                          "model.safetensors: No such file or directory"));
  EXPECT_THAT(ProblemsIn(folder.file("none")),
              ElementsAre(folder.file("none") + ": expected a folder or a GGUF file"));
  folder.Write("config.json", "{}");
  folder.Write("model.safetensors", "x");
  EXPECT_THAT(ProblemsIn(folder.path()),
              ElementsAre(StartsWith("config.json: model_type: expected one of "),
                          StartsWith("model.safetensors: holds 1 bytes")));
}

// An unreadable tensor is a problem of its file.
TEST(FolderReport, ATruncatedFileIsNotMissingTensors) {
  EditedModel model("sw-ovq");
  const TempFolder folder;
  model.Write(folder);
  std::filesystem::resize_file(folder.file("model.safetensors"),
                               std::filesystem::file_size(folder.file("model.safetensors")) - 8);
  EXPECT_THAT(ProblemsIn(folder.path()), ElementsAre(HasSubstr("truncated?")));
}

TEST(FolderReport, AnEmptyFileIsAProblem) {
  EditedModel model("sw-ovq");
  const TempFolder folder;
  model.Write(folder);
  folder.Write("model.safetensors", "");
  EXPECT_THAT(ProblemsIn(folder.path()), ElementsAre(HasSubstr("holds 0 bytes")));
}

TEST(FolderReport, GenerationConfig) {
  EditedModel model("sw-ovq");
  model.config["eos_token_id"] = {2, 3};
  const TempFolder folder;
  model.Write(folder);
  const auto problems = [&folder](const OrderedJson& json) {
    folder.Write("generation_config.json", json.dump());
    return ProblemsIn(folder.path());
  };
  EXPECT_THAT(problems({{"eos_token_id", {3, 7}}, {"temperature", 0.5}, {"pad_token_id", 999}}),
              IsEmpty());
  EXPECT_THAT(LoadConfig(folder.path())->eos_token_ids, ElementsAre(2, 3, 7));
  EXPECT_THAT(problems({{"eos_token_id", 101}}),
              ElementsAre(StartsWith(
                  "generation_config.json: eos_token_id: expected integers in [0, 100]")));
  EXPECT_THAT(problems("text"), ElementsAre(StartsWith("generation_config.json: not a JSON")));
}

OrderedJson BpeJson() {
  return {{"model",
           {{"type", "BPE"}, {"vocab", {{"a", 0}, {"b", 1}}}, {"merges", OrderedJson::array()}}},
          {"added_tokens",
           {{{"id", 2}, {"content", "<s>"}, {"special", true}},
            {{"id", 3}, {"content", "</s>"}, {"special", true}}}}};
}

TEST(FolderReport, Tokenizers) {
  EditedModel model("sw-ovq");
  model.config["eos_token_id"] = 3;
  const TempFolder folder;
  model.Write(folder);
  OrderedJson tokenizer = BpeJson();
  folder.Write("tokenizer.json", tokenizer.dump());
  const OrderedJson report = Report(folder.path());
  EXPECT_THAT(Problems(report), IsEmpty());
  EXPECT_EQ(report["tokenizer"]["size"], 4);
  EXPECT_EQ(report["tokenizer"]["special_tokens"], OrderedJson({{"2", "<s>"}, {"3", "</s>"}}));

  model.config["eos_token_id"] = {3, 50};
  model.Write(folder);
  EXPECT_THAT(
      ProblemsIn(folder.path()),
      ElementsAre("config.json or generation_config.json: eos_token_id: expected an id of the "
                  "tokenizer's 4 tokens, got 50"));
  tokenizer["model"]["vocab"]["b"] = 101;
  tokenizer["added_tokens"][0].update({{"id", 300}, {"special", false}});
  tokenizer["added_tokens"][1]["id"] = "3";
  tokenizer["decoder"] = {{"type", "Nonsense"}};
  folder.Write("tokenizer.json", tokenizer.dump());
  folder.Write("tokenizer_config.json",
               OrderedJson({{"add_bos_token", true}, {"bos_token", "<bos>"}}).dump());
  EXPECT_THAT(ProblemsIn(folder.path()),
              UnorderedElementsAre(HasSubstr("'b': expected an integer id below the model's"),
                                   HasSubstr("added_tokens[0].id: expected an integer in [0, 100]"),
                                   HasSubstr("added_tokens[1].id: expected an integer"),
                                   HasSubstr("decoder.type: unknown value 'Nonsense'")));
  folder.Write("tokenizer.json", BpeJson().dump());
  EXPECT_THAT(ProblemsIn(folder.path()),
              ElementsAre(HasSubstr("has no token '<bos>', which tokenizer_config.json names")));
}

TEST(FolderReport, AsTextEveryProblemIsALine) {
  OrderedJson report = Report("none");
  report["problems"] = {"config.json: a\nb: unknown field", "two"};
  EXPECT_THAT(ReportText(report),
              ::testing::EndsWith("2 problems:\nconfig.json: a\\x0ab: unknown field\ntwo\n"));
}

TEST(FolderReport, AsTextAndAsJson) {
  InspectOptions options;
  options.positions = {64};
  const OrderedJson report = Report(LoadGolden("sw-ovq").folder, options);
  const std::string text = ReportText(report);
  EXPECT_THAT(text, HasSubstr("family      ovq_hybrid\nlayers      4\n  0         "));
  EXPECT_THAT(text, HasSubstr("states in f32\n"));
  EXPECT_THAT(text, ::testing::EndsWith("no problems\n"));
  EXPECT_EQ(report["family"], "ovq_hybrid");
  EXPECT_EQ(report["problems"], OrderedJson::array());
  EXPECT_TRUE(report["tokenizer"].is_null());
}

TEST(InspectOptions, AreChecked) {
  const auto error = [](const std::vector<std::string>& args) {
    return Message(ParseInspectOptions(args).status());
  };
  EXPECT_EQ(error({}), "MODEL: expected a model folder or a GGUF file, got none");
  EXPECT_EQ(error({"m", "--positions", "0"}).substr(0, 12), "--positions:");
  EXPECT_EQ(error({"m", "--slot-caps=1"}).substr(0, 12), "--slot-caps:");
  EXPECT_EQ(error({"--help"}), "");
  const auto options = ParseInspectOptions(std::vector<std::string>{
      "m", "--json", "--positions=1,2", "--state-dtype", "bf16", "--slot-caps", "7"});
  ASSERT_TRUE(options.ok()) << options.status();
  EXPECT_EQ(options->folder, "m");
  EXPECT_TRUE(options->json);
  EXPECT_THAT(options->positions, ElementsAre(1, 2));
  EXPECT_THAT(options->slot_caps, ElementsAre(7));
  EXPECT_EQ(options->state_dtype, kernels::DType::kBF16);
  EXPECT_THAT(InspectHelp(), HasSubstr("usage: ovq-inspect MODEL"));
}

TEST(InspectOptions, FlagsOfSharesAndOfTheReportExcludeOneAnother) {
  const auto error = [](std::vector<std::string> args) {
    args.insert(args.begin(), "m");
    return Message(ParseInspectOptions(args).status());
  };
  EXPECT_EQ(error({"--write"}), "--write needs --shares");
  EXPECT_EQ(error({"--by-head"}), "--by-head needs --shares");
  for (const char* flag :
       {"--memory=paper", "--slots=8", "--tokens=8", "--sequences=1", "--threads=1"}) {
    EXPECT_THAT(error({flag}), ::testing::EndsWith(" needs --shares")) << flag;
    EXPECT_EQ(error({flag, "--shares=t", "--by-head", "--write", "--json"}), "") << flag;
  }
  for (const char* flag : {"--positions=1", "--slot-caps=8", "--state-dtype=i8"}) {
    EXPECT_THAT(error({"--shares=t", flag}), ::testing::EndsWith(" does not go with --shares"));
  }
}

TEST(FolderReport, ChatTemplates) {
  const TempFolder folder;
  EditedModel("sw-ovq").Write(folder);
  EXPECT_TRUE(Report(folder.path())["chat_template"].is_null());
  folder.Write("chat_template.jinja", "{% if messages %}");
  const OrderedJson wrong = Report(folder.path());
  EXPECT_THAT(Problems(wrong),
              ElementsAre(StartsWith("chat_template.jinja, line 1: syntax: expected a tag elif")));
  folder.Write("chat_template.jinja", "{{ messages }}");
  const OrderedJson report = Report(folder.path());
  EXPECT_THAT(Problems(report), IsEmpty());
  EXPECT_EQ(report["chat_template"], "chat_template.jinja");
  EXPECT_THAT(ReportText(report), HasSubstr("\nchat        chat_template.jinja\n"));
}

}  // namespace
}  // namespace ovq::model::test
