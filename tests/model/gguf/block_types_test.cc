// Elements of blocks against ggml's own (tests/golden/gguf), to the bit.
#include "model/gguf/block_types.h"

#include <gtest/gtest.h>

#include <bit>
#include <vector>

#include "model/gguf/gguf_file.h"
#include "tests/folders.h"
#include "tests/model/model_test_util.h"

namespace ovq::model::test {
namespace {

TEST(BlockTypes, DecodeAsGgmlDoes) {
  const std::string folder = GoldenFolder() + "/gguf/";
  GgufFile blocks;
  const absl::Status status = GgufFile::Open(folder + "blocks.gguf", blocks);
  ASSERT_TRUE(status.ok()) << status;
  const absl::StatusOr<SafetensorsFile> expected = OpenSafetensors(folder + "blocks.safetensors");
  ASSERT_TRUE(expected.ok()) << expected.status();
  for (const BlockType& type : BlockTypes()) {
    SCOPED_TRACE(type.name);
    const std::string name(type.name);
    ASSERT_TRUE(blocks.tensors().contains(name));
    const GgufTensor& tensor = blocks.tensors().at(name);
    EXPECT_EQ(tensor.type, &type);
    const kernels::TensorView numbers = View(*expected, name);
    const int64_t n = tensor.shape.elements();
    ASSERT_EQ(numbers.shape.elements(), n);
    std::vector<float> block(static_cast<size_t>(type.elements));
    for (int64_t i = 0; i < n; ++i) {
      if (i % type.elements == 0) {
        type.decode(tensor.bytes.data() + static_cast<size_t>(i / type.elements) * type.bytes,
                    block.data());
      }
      const float got = block[static_cast<size_t>(i % type.elements)],
                  wanted = numbers.as<float>()[i];
      ASSERT_EQ(std::bit_cast<uint32_t>(got), std::bit_cast<uint32_t>(wanted))
          << "element " << i << ": " << got << ", expected " << wanted;
    }
  }
}

}  // namespace
}  // namespace ovq::model::test
