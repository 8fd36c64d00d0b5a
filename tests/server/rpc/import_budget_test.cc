// Memory of imports while their bytes arrive (TransferBudget of stream_call.h).
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <list>
#include <memory>
#include <string>

#include "absl/strings/str_cat.h"
#include "server/engine/common/session_image.h"
#include "tests/server/server_test_util.h"

namespace ovq::server::test {
namespace {

TestServerOptions WithMemory(size_t bytes) {
  TestServerOptions options;
  options.engine.state_memory_bytes = bytes;
  return options;
}

// An ImportSession call that sends the given bytes.
struct Import {
  explicit Import(TestServer& server) : writer(server.sessions().ImportSession(&context, &made)) {}
  bool Send(const std::string& bytes) {
    v1::SessionBytes part;
    part.set_data(bytes);
    return writer->Write(part);
  }
  grpc::Status Finish() {
    writer->WritesDone();
    return writer->Finish();
  }

  grpc::ClientContext context;
  v1::Session made;
  std::unique_ptr<grpc::ClientWriter<v1::SessionBytes>> writer;
};

class ImportBudgetTest : public testing::Test {
 protected:
  static constexpr size_t kBudget = size_t{64} << 10;

  ImportBudgetTest() {
    v1::CreateSessionRequest create;
    create.mutable_prompt()->set_text("once upon a time there was a session");
    const std::string id = server_.NewSession(create);
    engine::SessionImage image = *server_.engine().sessions().Export(id, "");
    EXPECT_TRUE(server_.engine().sessions().Delete(id, "").ok());
    bytes_ = ImageBytes(image);
    // A head of a session that fits no budget here.
    engine::SessionImage large = image;
    large.position = kBudget;
    large.tokens = std::vector<int32_t>(kBudget + 1, 1);
    large.pending = 1;
    large.state.resize(server_.model().layout().live_bytes_at(large.position, large.slot_cap));
    large_bytes_ = ImageBytes(large);
    large_head_ = engine::EncodeSession(std::move(large)).head.substr(0, 400);
    const engine::EncodedSession file = engine::EncodeSession(std::move(image));
    file_ = absl::StrCat(file.head, file.state, file.tail);
    head_bytes_ = file.head.size();
  }
  static size_t ImageBytes(const engine::SessionImage& image) {
    return image.state.size() + static_cast<size_t>(image.length()) * sizeof(int32_t);
  }
  // Imports the whole file and deletes the session.
  grpc::Status Whole() {
    Import import(server_);
    import.Send(file_);
    grpc::Status status = import.Finish();
    if (status.ok()) {
      EXPECT_TRUE(server_.engine().sessions().Delete(import.made.session_id(), "").ok());
    }
    return status;
  }
  static std::string Refusal(size_t needed, size_t free) {
    return absl::StrCat("imports: ", needed, " bytes needed, ", free, " of ", kBudget,
                        " bytes free");
  }
  // Waits, at most 10 s, until this many bytes are free, as the refusal of a large import says: the
  // server handles the other calls at its own time.
  void AwaitFree(size_t free) {
    const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(10);
    std::string told;
    while (told != Refusal(large_bytes_, free) && std::chrono::steady_clock::now() < end) {
      Import large(server_);
      large.Send(large_head_);
      told = large.writer->Finish().error_message();  // by its head only: no end was sent
    }
    ASSERT_EQ(told, Refusal(large_bytes_, free));
  }

  TestServer server_{WithMemory(kBudget)};
  std::string file_, large_head_;
  size_t bytes_ = 0, large_bytes_ = 0;  // held by an import of the small and of the large file
  size_t head_bytes_ = 0;               // of the file before the state
};

TEST_F(ImportBudgetTest, IsHeldFromTheHeadToTheEndOfTheCall) {
  ASSERT_NO_FATAL_FAILURE(AwaitFree(kBudget));
  std::list<Import> held;
  for (size_t i = 0; i < kBudget / bytes_; ++i) {
    ASSERT_TRUE(held.emplace_back(server_).Send(file_.substr(0, head_bytes_)));
  }
  ASSERT_GT(held.size(), 1u);
  const size_t left = kBudget - held.size() * bytes_;
  ASSERT_NO_FATAL_FAILURE(AwaitFree(left));
  const grpc::Status refused = Whole();
  EXPECT_EQ(refused.error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED);
  EXPECT_EQ(refused.error_message(), Refusal(bytes_, left));
  EXPECT_EQ(GetErrorInfo(refused).reason(), "state_memory");
  EXPECT_EQ(GetErrorInfo(refused).bytes_free(), left);

  EXPECT_TRUE(held.front().Send(file_.substr(head_bytes_)));
  const grpc::Status done = held.front().Finish();
  EXPECT_TRUE(done.ok()) << done.error_message();
  EXPECT_TRUE(server_.engine().sessions().Delete(held.front().made.session_id(), "").ok());
  held.pop_front();
  ASSERT_NO_FATAL_FAILURE(AwaitFree(left + bytes_));
  EXPECT_TRUE(Whole().ok());
  for (Import& import : held) import.context.TryCancel();
  AwaitFree(kBudget);
}

TEST_F(ImportBudgetTest, AnImportThatHasItsAnswerHoldsNothing) {
  ASSERT_NO_FATAL_FAILURE(AwaitFree(kBudget));
  std::list<Import> held;  // all but one
  while (held.size() + 1 < kBudget / bytes_) {
    ASSERT_TRUE(held.emplace_back(server_).Send(file_.substr(0, head_bytes_)));
  }
  ASSERT_NO_FATAL_FAILURE(AwaitFree(kBudget - held.size() * bytes_));
  for (int i = 0; i < 200; ++i) {
    const grpc::Status status = Whole();
    ASSERT_TRUE(status.ok()) << i << ": " << status.error_message();
  }
  for (Import& import : held) import.context.TryCancel();
}

}  // namespace
}  // namespace ovq::server::test
