// UNTESTED: onnxruntime's C++ headers were not at hand. client_openvino.cpp has the same form and is run by the tests.
//
// Step one lane of an exported model in C++ with ONNX Runtime (1.16 or newer), its memories fed back.
//
//   client_onnxruntime demand.onnx < rows.txt > forecasts.txt
//
// A line of rows.txt is one call: "start value value …", start 1 for a lane that begins (anew), else 0; then the rows, row
// by row, in raw units, "nan" for a missing value. A line of forecasts.txt holds the y of that call, flat: rows, steps
// ahead, channels, quantiles. Which inputs are memories, and of what size, the graph tells by itself.
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <iostream>
#include <sstream>
#include <string>
#include <vector>

#include <onnxruntime_cxx_api.h>

int main(int argc, char** argv) {
  if (argc != 2) {
    std::cerr << "usage: client_onnxruntime MODEL.onnx < ROWS > FORECASTS\n";
    return 2;
  }
  Ort::Env env(ORT_LOGGING_LEVEL_WARNING, "txl-ts");
  Ort::SessionOptions options;
  options.SetIntraOpNumThreads(1);  // a small graph is slower on many
  options.SetInterOpNumThreads(1);
  Ort::Session session(env, argv[1], options);  // on Windows the path is of wide characters
  Ort::AllocatorWithDefaultOptions allocator;
  const Ort::MemoryInfo cpu = Ort::MemoryInfo::CreateCpu(OrtArenaAllocator, OrtMemTypeDefault);

  std::vector<std::string> in_names, out_names{"y"};
  std::vector<Ort::Value> values;  // in the order of in_names
  size_t n_channels = 1, x_at = 0, start_at = 0;
  for (size_t i = 0; i < session.GetInputCount(); ++i) {
    const std::string name = session.GetInputNameAllocated(i, allocator).get();
    const Ort::TypeInfo info = session.GetInputTypeInfo(i);
    std::vector<int64_t> shape = info.GetTensorTypeAndShapeInfo().GetShape();
    shape[0] = 1;  // one lane
    in_names.push_back(name);
    if (name == "x") {
      x_at = i;
      n_channels = shape[2];
      values.emplace_back(nullptr);
    } else if (name == "start") {
      start_at = i;
      values.emplace_back(nullptr);
    } else {
      const auto type = info.GetTensorTypeAndShapeInfo().GetElementType();
      Ort::Value memory = Ort::Value::CreateTensor(allocator, shape.data(), shape.size(), type);
      const size_t n = memory.GetTensorTypeAndShapeInfo().GetElementCount();
      if (type == ONNX_TENSOR_ELEMENT_DATA_TYPE_INT32) {
        std::fill_n(memory.GetTensorMutableData<int32_t>(), n, 0);
      } else {
        std::fill_n(memory.GetTensorMutableData<float>(), n, 0.0f);
      }
      values.push_back(std::move(memory));
      out_names.push_back("present" + name.substr(4));
    }
  }
  std::vector<const char*> in, out;
  for (const auto& name : in_names) in.push_back(name.c_str());
  for (const auto& name : out_names) out.push_back(name.c_str());

  for (std::string line; std::getline(std::cin, line);) {
    std::istringstream words(line);
    std::string word;
    words >> word;
    int32_t start = std::atoi(word.c_str());
    std::vector<float> x;
    while (words >> word) x.push_back(std::strtof(word.c_str(), nullptr));
    if (x.empty() || x.size() % n_channels) {
      std::cerr << "a line needs a start flag and whole rows of " << n_channels << " values, got: " << line << "\n";
      return 1;
    }
    const int64_t x_shape[] = {1, int64_t(x.size() / n_channels), int64_t(n_channels)}, start_shape[] = {1, 1};
    values[x_at] = Ort::Value::CreateTensor<float>(cpu, x.data(), x.size(), x_shape, 3);
    values[start_at] = Ort::Value::CreateTensor<int32_t>(cpu, &start, 1, start_shape, 2);
    auto given = session.Run(Ort::RunOptions{}, in.data(), values.data(), in.size(), out.data(), out.size());
    const size_t n = given[0].GetTensorTypeAndShapeInfo().GetElementCount();
    const float* y = given[0].GetTensorData<float>();
    for (size_t i = 0; i < n; ++i) std::printf(i ? " %.9g" : "%.9g", y[i]);
    std::printf("\n");
    for (size_t i = 0, next = 1; i < values.size(); ++i) {
      if (i != x_at && i != start_at) values[i] = std::move(given[next++]);
    }
  }
}
