// Formats the engine's events as the body of an HTTP answer.
#pragma once

#include <string>

#include "absl/status/status.h"
#include "server/engine/common/engine_api.h"

namespace ovq::server {

// The format of one answer. One thread at a time.
class AnswerWriter {
 public:
  virtual ~AnswerWriter() = default;
  virtual bool streams() const = 0;
  // Streams: appends the event's text to `out`. Otherwise keeps the event for End.
  virtual void Add(const engine::StreamEvent& event, std::string& out) = 0;
  // Streams: appends the end of the stream, which tells an error that came after the first event.
  // Otherwise appends the whole answer; status is OK.
  virtual void End(const absl::Status& status, std::string& out) = 0;
};

// Appends one server-sent event: "data: ...".
inline void AppendEvent(std::string_view data, std::string& out) {
  out += "data: ";
  out += data;
  out += "\n\n";
}

}  // namespace ovq::server
