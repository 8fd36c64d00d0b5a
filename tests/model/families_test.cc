// Checkpoints of the KVM paper's code: the mapping of fields and tensors, and refusals.
// fixtures_test.cc tests their logits.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "tests/model/edited_model.h"

namespace ovq::model::test {
namespace {

constexpr char kFull[] = "kvm/gptalpha-nope-swa";
constexpr char kOvq[] = "kvm/ovq-swa";
constexpr char kKvm[] = "kvm/kvm-power-law";
constexpr char kPost[] = "kvm/post-tokenshift";

// The original rounds sines, cosines and KVM's state values to bfloat16 even in float32, and these
// logits are its; here only bfloat16 checkpoints round. A value halfway between two bfloat16
// numbers may be rounded the other way and move a logit by some 1e-4; without the rounding logits
// are off by 4e-3 and more.
TEST(Rwkv7Backbone, RoundsWhereBFloat16ModelsWereTrainedSo) {
  for (const char* name : {kFull, kOvq, kKvm}) {
    EditedModel model(name);
    model.config["dtype"] = "bfloat16";
    ModelOptions options = kSmallSessions;
    options.compute_dtype = kernels::DType::kF32;
    const auto loaded = model.Load(options);
    ASSERT_TRUE(loaded.ok()) << loaded.status();
    const Golden golden = LoadGolden(name);
    const auto expected = OpenSafetensors(golden.folder + "/expected.safetensors");
    const kernels::TensorView logits = View(*expected, "prefill_bf16cast.s4_len56");
    Session session(**loaded, *model.context, golden.sequences[4],
                    std::max<int64_t>((*loaded)->layout().default_slot_cap(), 2));
    session.Feed(56);
    float worst = 0;
    for (size_t i = 0; i < session.logits().size(); ++i) {
      worst = std::max(worst, std::abs(session.logits()[i] - logits.as<float>()[i]));
    }
    EXPECT_LT(worst, 2e-3f) << name;
  }
}

TEST(Rwkv7Backbone, RefusesWhatItDoesNotHave) {
  const auto expect = [](const char* name, const std::string& field, const nlohmann::json& value,
                         const std::string& text) {
    EditedModel model(name);
    model.config[field] = value;
    model.ExpectError(absl::StatusCode::kInvalidArgument, "config.json: " + text);
  };
  expect(kFull, "token_mixer", "rwkv7",
         "token_mixer: mixer 'rwkv7' is not supported; known: swa, gptalpha, gptalpha_bswa, ovq, "
         "kvm");
  expect(kFull, "token_mixer_class_path", "model.rwkv7_mixer.SequenceMixer",
         "token_mixer_class_path: mixer 'rwkv7' is not supported");
  expect(kFull, "token_mixer_class_path", "elsewhere",
         "token_mixer_class_path: expected model.NAME_mixer.SequenceMixer, got 'elsewhere'");
  expect(kFull, "alt_token_mixer", "lact", "alt_token_mixer: mixer 'lact' is not supported");
  expect(kFull, "num_key_value_heads", 1, "num_key_value_heads: expected num_attention_heads = 2");
  expect(kKvm, "num_key_value_heads", 3,
         "num_key_value_heads: expected a divisor of num_attention_heads = 2, got 3");
  expect(kKvm, "num_key_value_heads", 0, "num_key_value_heads: expected an integer in [1, ");
  expect(kFull, "use_value_residual", 2, "use_value_residual: expected true, false, 0 or 1, got 2");
  expect(kFull, "gptalpha_value_residual_mode", "rwkv7",
         "gptalpha_value_residual_mode: unknown value 'rwkv7'; known: rwkv, linear, "
         "rwkv_post_tokenshift");
  expect(kPost, "n_bswa_chunks", 0, "n_bswa_chunks: expected an integer in [1, 256], got 0");
  expect(kPost, "sink_len", -1, "sink_len: expected an integer in [0, ");
  expect(kPost, "chunk_len", 0, "chunk_len: expected an integer in [1, ");
  expect(kFull, "ffn_expansion", 0.01, "ffn_expansion: expected a feed-forward of 32 channels");
  expect(kFull, "alt_rope_partial_dim", 33, "alt_rope_partial_dim: expected an integer in [1, 32]");
  expect(kFull, "alt_rope_partial_dim", 31, "alt_rope_partial_dim: expected an even number");
  expect(kOvq, "ovq_chunk_size", 1, "ovq_chunk_size: expected an integer in [2, ");
  for (const char* flag : {"ovq_normalize_centroids", "ovq_use_min_state_size",
                           "ovq_use_counts_for_lr_only", "ovq_use_delta_rule"}) {
    expect(kOvq, flag, 2, absl::StrCat(flag, ": expected true, false, 0 or 1, got 2"));
  }
  expect(kKvm, "state_growth_exponent", 2, "state_growth_exponent: expected a number in [0, 1]");
  expect(kKvm, "state_budget_mode", "endless", "state_budget_mode: unknown value 'endless'");
}

TEST(Rwkv7Backbone, TakesFlagsAndMixersAsTheyAreWritten) {
  EditedModel model(kFull);
  const std::vector<float> before = ComputeLogits(model);
  model.config["use_value_residual"] = true;
  model.config["token_mixer"] = "rwkv7";  // the class path overrides it
  model.config["token_mixer_class_path"] = "model.gptalpha_mixer.SequenceMixer";
  model.config["residual_scale"] = 0.5;
  model.config["some_later_field"] = {{"a", 1}};
  EXPECT_EQ(ComputeLogits(model), before);
}

// The published code has two more modules with the same mixer.
TEST(Rwkv7Backbone, KvmWithOtherKernelsIsKvm) {
  EditedModel model(kKvm);
  const std::vector<float> before = ComputeLogits(model);
  for (const char* module : {"kvm_triton_mixer", "kvm_fp32_routing_reference"}) {
    model.config["token_mixer_class_path"] = absl::StrCat("model.", module, ".SequenceMixer");
    EXPECT_EQ(ComputeLogits(model), before) << module;
  }
}

TEST(Rwkv7Backbone, NamesTensorsAsTheFileDoes) {
  EditedModel missing(kFull);
  missing.tensors.erase("transformer.h.1.attn.ln_q.bias");
  missing.ExpectError(absl::StatusCode::kNotFound, "transformer.h.1.attn.ln_q.bias");
  EditedModel extra(kFull);
  extra.tensors["transformer.h.1.attn.beta"] = extra.tensors["transformer.h.1.attn.ln_q.bias"];
  extra.ExpectError(absl::StatusCode::kInvalidArgument, "'transformer.h.1.attn.beta'");
  EditedModel window(kPost);
  window.tensors.erase("transformer.h.3.attn.ln_k.weight");
  window.ExpectError(absl::StatusCode::kNotFound, "transformer.h.3.attn.ln_k.weight");
  EditedModel delta("kvm/ovq-flags");
  delta.tensors.erase("transformer.h.1.attn.beta");
  delta.ExpectError(absl::StatusCode::kNotFound, "transformer.h.1.attn.beta");
  EditedModel norms("kvm/ovq-flags");
  norms.tensors["transformer.h.1.attn.ln_k.weight"] = norms.tensors["transformer.h.1.attn.beta"];
  norms.ExpectError(absl::StatusCode::kInvalidArgument, "'transformer.h.1.attn.ln_k.weight'");
  EditedModel flat(kFull);
  flat.tensors["transformer.h.0.mlp.x_k"].first = {64};
  flat.ExpectError(absl::StatusCode::kInvalidArgument,
                   "transformer.h.0.mlp.x_k: expected [1, 1, 64], got [64]");
}

// Without token shift the original still stores attn.x_v in every layer; nothing reads it.
TEST(Rwkv7Backbone, TokenShiftMayBeOff) {
  EditedModel model(kFull);
  model.config["use_tokenshift_att"] = 0;
  for (int layer = 0; layer < 4; ++layer) {
    for (const char* leaf : {"x_q", "x_k"}) {
      model.tensors.erase(absl::StrCat("transformer.h.", layer, ".attn.", leaf));
    }
  }
  EditedModel still(kFull);  // a shift by 0
  for (int layer = 0; layer < 4; ++layer) {
    for (const char* leaf : {"x_q", "x_k", "x_v"}) {
      std::string& mix =
          still.tensors[absl::StrCat("transformer.h.", layer, ".attn.", leaf)].second;
      mix.assign(mix.size(), '\0');
    }
  }
  EXPECT_EQ(ComputeLogits(model), ComputeLogits(still));
}

// A gate of the shifted input has a shift of its own, independent of the attention's.
TEST(Rwkv7Backbone, AGateAfterTheShiftShiftsByItself) {
  EditedModel before(kPost);
  before.config["use_tokenshift_att"] = 0;
  for (int layer = 0; layer < 4; ++layer) {
    for (const char* leaf : {"x_q", "x_k"}) {
      before.tensors.erase(absl::StrCat("transformer.h.", layer, ".attn.", leaf));
    }
  }
  EditedModel after = before.Copy(), still = before.Copy();
  before.config["gptalpha_value_residual_mode"] = "rwkv";
  for (int layer = 0; layer < 4; ++layer) {
    std::string& mix = still.tensors[absl::StrCat("transformer.h.", layer, ".attn.x_v")].second;
    mix.assign(mix.size(), '\0');
  }
  EXPECT_EQ(ComputeLogits(still), ComputeLogits(before));
  EXPECT_NE(ComputeLogits(after), ComputeLogits(before));
  after.tensors.erase("transformer.h.1.attn.x_v");
  after.ExpectError(absl::StatusCode::kNotFound, "transformer.h.1.attn.x_v");
}

TEST(Rwkv7Backbone, EveryFirstLayerAsAlternateIsNone) {
  EditedModel none(kFull), every(kFull);
  for (EditedModel* model : {&none, &every}) {
    model->config["token_mixer"] = "swa";
    model->config["rope_partial_dim"] = 32;
  }
  none.config["alt_layer_every"] = -1;
  every.config["alt_layer_every"] = 1;
  EXPECT_EQ(ComputeLogits(every), ComputeLogits(none));
}

TEST(Rwkv7Backbone, ALinearValueResidualOfNothingIsNone) {
  EditedModel none(kFull), linear(kFull);
  none.config["use_value_residual"] = 0;
  for (EditedModel* model : {&none, &linear}) {
    for (int layer = 0; layer < 4; ++layer) {
      for (const char* leaf : {"v_gate0", "v_gate1.weight", "v_gate2.weight"}) {
        model->tensors.erase(absl::StrCat("transformer.h.", layer, ".attn.", leaf));
      }
    }
  }
  linear.config["swa_value_residual_mode"] = "linear";
  linear.config["gptalpha_value_residual_mode"] = "linear";
  const auto set_share = [&](float share) {
    for (int layer = 0; layer < 4; ++layer) {
      linear.tensors[absl::StrCat("transformer.h.", layer, ".attn.lamb")] = {
          nlohmann::json::array(), Bytes({share})};
    }
  };
  set_share(0);
  const std::vector<float> without = ComputeLogits(none);
  EXPECT_EQ(ComputeLogits(linear), without);
  set_share(0.5f);
  EXPECT_NE(ComputeLogits(linear), without);
}

// The golden models with skips are kvm/skips and kvm/skips-ovq.
TEST(Rwkv7Backbone, SkipsGoWithLayersThatAlternateAlikeInBothHalves) {
  EditedModel model("kvm/skips");
  model.config["alt_layer_every"] = 2;
  model.ExpectError(absl::StatusCode::kInvalidArgument, "use_skip_connections: expected false");
}

// The published code had 1 for this field until August 2026, and then 0.
TEST(Rwkv7Backbone, AppendedRowsAreNotGatedUnlessTheFileSaysSo) {
  EditedModel absent("kvm/kvm-gqa"), gated("kvm/kvm-gqa");
  absent.config.erase("kvm_apply_merge_gate_to_appends");
  gated.config["kvm_apply_merge_gate_to_appends"] = 1;
  const Golden golden = LoadGolden("kvm/kvm-gqa");
  const auto logits = [&](const EditedModel& model) {
    const auto loaded = model.Load().value();
    Session session(*loaded, *model.context, golden.sequences.back(), 4096);
    session.Feed(session.remaining());
    return session.logits();
  };
  EXPECT_EQ(logits(absent), logits(EditedModel("kvm/kvm-gqa")));
  EXPECT_NE(logits(absent), logits(gated));
}

TEST(Rwkv7Backbone, SoftCapBoundsTheLogits) {
  EditedModel model(kFull);
  std::vector<float> expected = ComputeLogits(model);
  for (float& logit : expected) logit = 3 * std::tanh(logit / 3);
  model.config["logit_softcap"] = 3;
  const std::vector<float> capped = ComputeLogits(model);
  ASSERT_EQ(capped.size(), expected.size());
  for (size_t i = 0; i < capped.size(); ++i) EXPECT_NEAR(capped[i], expected[i], 2e-6) << i;
}

}  // namespace
}  // namespace ovq::model::test
