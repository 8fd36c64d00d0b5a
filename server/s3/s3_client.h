// Defines S3Client, by which all threads of a store talk to its object store.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "base/clock.h"
#include "server/http_client/client_connection.h"
#include "server/s3/s3_address.h"
#include "server/s3/signature.h"

namespace ovq::s3 {

inline constexpr char kNoEtag[] = "\"00000000000000000000000000000000\"";  // no object has it

struct ObjectBytes {
  std::string bytes, etag;
};

struct ListedObject {
  std::string key, etag;
  uint64_t bytes = 0;
  absl::Time modified = {};
};

struct ListedPage {
  std::vector<ListedObject> objects = {};
  std::string next = {};  // continues the list; "": it has ended
  absl::Time now = {};    // by the object store's clock; InfinitePast if it does not say
};

// A state that an object must be in to be stored.
struct Precondition {
  enum class Kind : uint8_t { kNothing, kAbsent, kThis };
  Kind kind = Kind::kNothing;
  std::string etag = {};  // kThis: of the object that is replaced

  static Precondition Absent() { return {Kind::kAbsent}; }
  static Precondition This(std::string etag) { return {Kind::kThis, std::move(etag)}; }
};

// Thread-safe. Connections are kept and used again. Keys are without the address's prefix.
//
// Errors name the address and the key. NotFound: there is no such object. FailedPrecondition: a
// precondition does not hold. Unavailable: no answer, or one that asks to come again. Anything else
// will not go away by itself: PermissionDenied, and Internal for all other refusals, such as for a
// bucket that is not there.
class S3Client {
 public:
  S3Client(S3Address address, S3Credentials credentials, absl::Duration reply_timeout);

  // Stores an object and returns its ETag. It is sent again while the object store is Unavailable,
  // until `until`; so with a precondition, an error may be that an earlier attempt was carried out:
  // `unanswered` becomes true if there was one without an answer that says it was not.
  absl::StatusOr<std::string> PutObject(const std::string& key, std::string_view bytes,
                                        const Precondition& precondition, SteadyTime until,
                                        bool* unanswered = nullptr);
  // known: nullopt is returned for an object that still has this ETag ("": none).
  absl::StatusOr<std::optional<ObjectBytes>> GetIfChanged(const std::string& key,
                                                          const std::string& known,
                                                          SteadyTime until);
  absl::StatusOr<ObjectBytes> GetObject(const std::string& key, SteadyTime until);
  // OK for an object that is not there.
  absl::Status Delete(const std::string& key, SteadyTime until);
  // Deletes an object if it still has this ETag. The object stays where the object store is not
  // known to compare ETags, and that is no error.
  absl::Status DeleteThis(const std::string& key, const std::string& etag, SteadyTime until);
  // Finds out, with an object that may be gone then, whether the object store compares ETags before
  // it deletes. No other thread uses this client meanwhile.
  absl::Status ProbeDelete(const std::string& key, SteadyTime until);
  // Lists the objects whose keys begin with `prefix`, in the order of keys, 1000 a page. next: of
  // the page before.
  absl::StatusOr<ListedPage> List(const std::string& prefix, const std::string& next,
                                  SteadyTime until);
  absl::StatusOr<std::vector<ListedObject>> ListAll(const std::string& prefix, SteadyTime until);

  const S3Address& address() const { return address_; }

 private:
  struct Call {
    std::string method, key;  // key "": the bucket
    Query query = {};
    std::map<std::string, std::string> headers = {};
    std::string_view body = {};
  };
  struct IdleConnection {
    std::unique_ptr<server::ClientConnection> connection;
    SteadyTime since;
  };

  absl::StatusOr<server::ClientResponse> Run(const Call& call, SteadyTime until, bool* unanswered);
  absl::StatusOr<server::ClientResponse> RunOnce(const Call& call, bool& unanswered);
  server::ClientRequest Sign(const Call& call) const;
  // The error that a response is; OK for a success.
  absl::Status CheckAnswer(const Call& call, const server::ClientResponse& response) const;
  std::string FullKey(const std::string& key) const;
  std::unique_ptr<server::ClientConnection> Connection();

  const S3Address address_;
  const S3Credentials credentials_;
  const absl::Duration reply_timeout_;
  bool compares_to_delete_ = false;

  std::mutex mutex_;  // guards idle_
  std::vector<IdleConnection> idle_;
};

// How long to wait after so many attempts that failed one after another.
absl::Duration PauseAfter(int failures);

}  // namespace ovq::s3
