#include "server/s3/s3_client.h"

#include <algorithm>
#include <thread>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "base/problems.h"
#include "base/status_macros.h"
#include "base/text.h"
#include "server/s3/xml.h"

namespace ovq::s3 {
namespace {

constexpr absl::Duration kFirstPause = absl::Milliseconds(20), kLongestPause = absl::Seconds(1);
constexpr int kMostDoublings = 6;
constexpr size_t kMaxAnswer = size_t{64} << 20;         // bytes of an object or a list
constexpr absl::Duration kMaxIdle = absl::Seconds(15);  // object stores close connections after it
constexpr size_t kMaxIdleConnections = 32;
constexpr absl::Duration kTimeOfMiB = absl::Seconds(1);

std::string Header(const server::ClientResponse& response, const std::string& name) {
  const auto found = response.headers.find(name);
  return found == response.headers.end() ? "" : found->second;
}

absl::StatusOr<ListedObject> ParseListed(const XmlElement& contents, const std::string& prefix) {
  ListedObject object;
  const std::string key = contents.ChildText("Key");
  absl::string_view rest = key;
  std::string error;
  const bool good = absl::ConsumePrefix(&rest, prefix) &&
                    absl::SimpleAtoi(contents.ChildText("Size"), &object.bytes) &&
                    absl::ParseTime(absl::RFC3339_full, contents.ChildText("LastModified"),
                                    &object.modified, &error);
  if (!good) return absl::InternalError(absl::StrCat("a list with ", Quoted(key), " ", error));
  object.key = std::string(rest);
  object.etag = contents.ChildText("ETag");
  if (object.etag.empty()) return absl::InternalError("a list without ETags");
  return object;
}

}  // namespace

absl::Duration PauseAfter(int failures) {
  return std::min(kFirstPause * (1 << std::min(failures, kMostDoublings)), kLongestPause);
}

S3Client::S3Client(S3Address address, S3Credentials credentials, absl::Duration reply_timeout)
    : address_(std::move(address)),
      credentials_(std::move(credentials)),
      reply_timeout_(reply_timeout) {}

std::string S3Client::FullKey(const std::string& key) const {
  return address_.prefix.empty() ? key : absl::StrCat(address_.prefix, "/", key);
}

server::ClientRequest S3Client::Sign(const Call& call) const {
  const absl::Time now = absl::FromChrono(std::chrono::system_clock::now());
  RequestToSign to_sign{.method = call.method,
                        .path = absl::StrCat("/", address_.bucket),
                        .query = call.query,
                        .headers = call.headers,
                        .body_digest = Sha256Hex(call.body)};
  if (!call.key.empty()) absl::StrAppend(&to_sign.path, "/", FullKey(call.key));
  to_sign.headers["host"] = address_.endpoint.HostHeader();
  to_sign.headers["x-amz-content-sha256"] = to_sign.body_digest;
  to_sign.headers["x-amz-date"] = AmazonDate(now);
  server::ClientRequest request{.method = call.method,
                                .target = UriEncode(to_sign.path, /*encode_slash=*/false),
                                .body = call.body};
  if (!call.query.empty()) absl::StrAppend(&request.target, "?", EncodeQuery(call.query));
  for (const auto& header : to_sign.headers) {
    if (header.first != "host") request.headers.push_back(header);
  }
  request.headers.emplace_back("authorization",
                               Authorization(to_sign, credentials_, address_.region, now));
  return request;
}

std::unique_ptr<server::ClientConnection> S3Client::Connection() {
  const SteadyTime now = std::chrono::steady_clock::now();
  std::lock_guard lock(mutex_);
  std::erase_if(idle_, [now](const IdleConnection& idle) {
    return TimeBetween(idle.since, now) > kMaxIdle || !idle.connection->connected();
  });
  if (idle_.empty()) return std::make_unique<server::ClientConnection>(address_.endpoint);
  std::unique_ptr<server::ClientConnection> connection = std::move(idle_.back().connection);
  idle_.pop_back();
  return connection;
}

absl::Status S3Client::CheckAnswer(const Call& call, const server::ClientResponse& response) const {
  if (response.status / 100 == 2 || response.status == 304) return absl::OkStatus();
  const absl::StatusOr<XmlElement> error = ParseXml(response.body);
  const std::string code = error.ok() ? error->ChildText("Code") : "";
  const std::string words = absl::StrCat(
      address_.Where(), ": ", call.method, " ", call.key.empty() ? "the list" : call.key, ": ",
      response.status, code.empty() ? "" : " ", code,
      error.ok() ? absl::StrCat(": ", error->ChildText("Message")) : "");
  if (code == "RequestTimeTooSkewed") {
    return absl::PermissionDeniedError(
        absl::StrCat(words, "; the clock of this machine or that of the object store is wrong"));
  }
  switch (response.status) {
    case 400:
      if (code == "RequestTimeout" || code == "IncompleteBody") {
        return absl::UnavailableError(words);
      }
      break;
    case 404:
      // A proxy's 404 says nothing about an object.
      if (code == "NoSuchKey" && !call.key.empty()) return absl::NotFoundError(words);
      return code.empty() ? absl::UnavailableError(words) : absl::InternalError(words);
    case 412:
      return absl::FailedPreconditionError(words);
    case 401:
    case 403:
      return absl::PermissionDeniedError(words);
    case 408:
    case 409:  // another request is changing the object
    case 429:
      return absl::UnavailableError(words);
    default:
      break;
  }
  if (response.status >= 500 && response.status != 501) return absl::UnavailableError(words);
  const std::string region = Header(response, "x-amz-bucket-region");
  return absl::InternalError(
      absl::StrCat(words, region.empty() ? "" : "; the bucket is in the region ", region));
}

absl::StatusOr<server::ClientResponse> S3Client::RunOnce(const Call& call, bool& unanswered) {
  std::unique_ptr<server::ClientConnection> connection = Connection();
  const bool reused = connection->connected();
  const auto mib = static_cast<double>(call.body.size() >> 20);
  absl::StatusOr<server::ClientResponse> response =
      connection->Exchange(Sign(call), reply_timeout_ + mib * kTimeOfMiB, kMaxAnswer);
  if (!response.ok()) {
    unanswered |= connection->sent();
    if (reused) {  // the others have very likely ended with it
      std::lock_guard lock(mutex_);
      idle_.clear();
    }
    return absl::UnavailableError(
        absl::StrCat(address_.Text(), " at ", std::string(response.status().message())));
  }
  if (connection->connected()) {
    std::lock_guard lock(mutex_);
    if (idle_.size() < kMaxIdleConnections) {
      idle_.push_back({std::move(connection), std::chrono::steady_clock::now()});
    }
  }
  const absl::Status status = CheckAnswer(call, *response);
  // An error within the object store says nothing about what became of the request.
  if (response->status >= 500 || !response->whole) unanswered = true;
  if (!status.ok()) return status;
  if (!response->whole) {
    return absl::UnavailableError(
        absl::StrCat(address_.Where(), ": ", call.key, ": the answer broke off"));
  }
  return response;
}

absl::StatusOr<server::ClientResponse> S3Client::Run(const Call& call, SteadyTime until,
                                                     bool* unanswered) {
  bool ignored = false;
  for (int failures = 0;; ++failures) {
    absl::StatusOr<server::ClientResponse> response =
        RunOnce(call, unanswered == nullptr ? ignored : *unanswered);
    if (!absl::IsUnavailable(response.status())) return response;
    const SteadyTime next = After(std::chrono::steady_clock::now(), PauseAfter(failures));
    if (next > until) return response;
    std::this_thread::sleep_until(next);
  }
}

absl::StatusOr<std::string> S3Client::PutObject(const std::string& key, std::string_view bytes,
                                                const Precondition& precondition, SteadyTime until,
                                                bool* unanswered) {
  if (precondition.kind == Precondition::Kind::kThis && precondition.etag.empty()) {
    return absl::InternalError(absl::StrCat(key, ": an empty ETag would be no precondition"));
  }
  Call call{.method = "PUT", .key = key, .body = bytes};
  if (precondition.kind == Precondition::Kind::kAbsent) call.headers["if-none-match"] = "*";
  if (precondition.kind == Precondition::Kind::kThis) call.headers["if-match"] = precondition.etag;
  ASSIGN_OR_RETURN(const server::ClientResponse response, Run(call, until, unanswered));
  std::string etag = Header(response, "etag");
  if (etag.empty()) {
    return absl::InternalError(
        absl::StrCat(address_.Where(), ": PUT ", key, ": expected an ETag, got none"));
  }
  return etag;
}

absl::StatusOr<std::optional<ObjectBytes>> S3Client::GetIfChanged(const std::string& key,
                                                                  const std::string& known,
                                                                  SteadyTime until) {
  Call call{.method = "GET", .key = key};
  if (!known.empty()) call.headers["if-none-match"] = known;
  ASSIGN_OR_RETURN(server::ClientResponse response, Run(call, until, nullptr));
  if (response.status == 304 && !known.empty()) return std::nullopt;
  std::string etag = Header(response, "etag");
  if (response.status != 200 || !response.sized || etag.empty()) {
    return absl::UnavailableError(absl::StrCat(
        address_.Where(), ": GET ", key, ": expected 200 with Content-Length and ETag, got ",
        response.status, response.sized ? "" : " without a length",
        etag.empty() ? " without an ETag" : ""));
  }
  return ObjectBytes{std::move(response.body), std::move(etag)};
}

absl::StatusOr<ObjectBytes> S3Client::GetObject(const std::string& key, SteadyTime until) {
  ASSIGN_OR_RETURN(std::optional<ObjectBytes> object, GetIfChanged(key, "", until));
  return *std::move(object);
}

absl::Status S3Client::Delete(const std::string& key, SteadyTime until) {
  const absl::Status status = Run({.method = "DELETE", .key = key}, until, nullptr).status();
  return absl::IsNotFound(status) ? absl::OkStatus() : status;
}

absl::Status S3Client::DeleteThis(const std::string& key, const std::string& etag,
                                  SteadyTime until) {
  if (!compares_to_delete_) return absl::OkStatus();
  const Call call{.method = "DELETE", .key = key, .headers = {{"if-match", etag}}};
  const absl::Status status = Run(call, until, nullptr).status();
  return absl::IsNotFound(status) ? absl::OkStatus() : status;
}

absl::Status S3Client::ProbeDelete(const std::string& key, SteadyTime until) {
  const Call call{.method = "DELETE", .key = key, .headers = {{"if-match", kNoEtag}}};
  const absl::Status status = Run(call, until, nullptr).status();
  compares_to_delete_ = absl::IsFailedPrecondition(status);
  return absl::IsUnavailable(status) ? status : absl::OkStatus();
}

absl::StatusOr<ListedPage> S3Client::List(const std::string& prefix, const std::string& next,
                                          SteadyTime until) {
  Call call{.method = "GET", .key = "", .query = {{"list-type", "2"}}};
  call.query.emplace_back("prefix", FullKey(prefix));
  if (!next.empty()) call.query.emplace_back("continuation-token", next);
  ASSIGN_OR_RETURN(const server::ClientResponse response, Run(call, until, nullptr));
  absl::StatusOr<XmlElement> xml = ParseXml(response.body);
  if (!xml.ok() || xml->name != "ListBucketResult") {
    return absl::InternalError(absl::StrCat(address_.Where(), ": expected a list, got ",
                                            xml.ok() ? xml->name : xml.status().ToString()));
  }
  ListedPage page{.now = absl::InfinitePast()};
  const std::string own = FullKey("");
  for (const XmlElement& child : xml->children) {
    if (child.name != "Contents") continue;
    absl::StatusOr<ListedObject> object = ParseListed(child, own);
    if (!object.ok()) return InContext(address_.Where(), object.status());
    page.objects.push_back(*std::move(object));
  }
  if (xml->ChildText("IsTruncated") == "true") page.next = xml->ChildText("NextContinuationToken");
  if (xml->ChildText("IsTruncated") == "true" && (page.next.empty() || page.next == next)) {
    return absl::InternalError(
        absl::StrCat(address_.Where(), ": expected a list's next page, got no token for it"));
  }
  std::string error;
  (void)absl::ParseTime("%a, %d %b %Y %H:%M:%S GMT", Header(response, "date"), &page.now, &error);
  return page;
}

absl::StatusOr<std::vector<ListedObject>> S3Client::ListAll(const std::string& prefix,
                                                            SteadyTime until) {
  std::vector<ListedObject> all;
  std::string next;
  do {
    ASSIGN_OR_RETURN(ListedPage page, List(prefix, next, until));
    std::ranges::move(page.objects, std::back_inserter(all));
    next = std::move(page.next);
  } while (!next.empty());
  return all;
}

}  // namespace ovq::s3
