// Step one lane of an exported model in C++ with OpenVINO, its memories fed back.
//
//   client_openvino demand.onnx < rows.txt > forecasts.txt
//
// A line of rows.txt is one call: "start value value …", start 1 for a lane that begins (anew), else 0; then the rows, row
// by row, in raw units, "nan" for a missing value. A line of forecasts.txt holds the y of that call, flat: rows, steps
// ahead, channels, quantiles. Which inputs are memories, and of what size, the graph tells by itself.
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <iostream>
#include <sstream>
#include <string>
#include <vector>

#include <openvino/openvino.hpp>

int main(int argc, char** argv) {
  if (argc != 2) {
    std::cerr << "usage: client_openvino MODEL.onnx < ROWS > FORECASTS\n";
    return 2;
  }
  ov::Core core;
  // Without the hint newer processors compute in bfloat16, and the error grows through the memory.
  const ov::AnyMap settings{
      ov::hint::inference_precision(ov::element::f32), ov::inference_num_threads(1), ov::num_streams(1)};
  ov::CompiledModel graph = core.compile_model(argv[1], "CPU", settings);
  ov::InferRequest request = graph.create_infer_request();

  struct Memory {
    std::string past, present;
    ov::Tensor now, next;
  };
  std::vector<Memory> memories;
  size_t n_channels = 1;
  for (const auto& port : graph.inputs()) {
    const std::string name = port.get_any_name();
    if (name == "x") n_channels = port.get_partial_shape()[2].get_length();
    if (name.rfind("past.", 0) != 0) continue;
    ov::Shape shape{1};  // one lane
    for (int i = 1; i < port.get_partial_shape().rank().get_length(); ++i) {
      shape.push_back(port.get_partial_shape()[i].get_length());
    }
    Memory memory{name, "present" + name.substr(4), {port.get_element_type(), shape}, {port.get_element_type(), shape}};
    std::memset(memory.now.data(), 0, memory.now.get_byte_size());
    memories.push_back(memory);
  }

  for (std::string line; std::getline(std::cin, line);) {
    std::istringstream words(line);
    std::string word;
    words >> word;
    ov::Tensor start(ov::element::i32, {1, 1});
    start.data<int32_t>()[0] = std::atoi(word.c_str());
    std::vector<float> values;
    while (words >> word) values.push_back(std::strtof(word.c_str(), nullptr));
    if (values.empty() || values.size() % n_channels) {
      std::cerr << "a line needs a start flag and whole rows of " << n_channels << " values, got: " << line << "\n";
      return 1;
    }
    ov::Tensor x(ov::element::f32, {1, values.size() / n_channels, n_channels});
    std::memcpy(x.data(), values.data(), x.get_byte_size());
    request.set_tensor("x", x);
    request.set_tensor("start", start);
    for (auto& memory : memories) {
      request.set_tensor(memory.past, memory.now);
      request.set_tensor(memory.present, memory.next);
    }
    request.infer();
    for (auto& memory : memories) std::swap(memory.now, memory.next);
    const ov::Tensor y = request.get_tensor("y");
    for (size_t i = 0; i < y.get_size(); ++i) std::printf(i ? " %.9g" : "%.9g", y.data<float>()[i]);
    std::printf("\n");
  }
}
