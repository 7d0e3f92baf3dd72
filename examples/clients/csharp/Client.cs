// UNTESTED: no .NET was at hand. examples/clients/python/client.py has the same form and is run by the tests.
//
// Step one lane of an exported model in C# with Microsoft.ML.OnnxRuntime (1.16 or newer), its memories fed back.
//
//   dotnet run -- demand.onnx < rows.txt > forecasts.txt
//
// A line of rows.txt is one call: "start value value …", start 1 for a lane that begins (anew), else 0; then the rows, row
// by row, in raw units, "nan" for a missing value. A line of forecasts.txt holds the y of that call, flat: rows, steps
// ahead, channels, quantiles.
using System.Globalization;
using System.Text.Json;
using Microsoft.ML.OnnxRuntime;
using Microsoft.ML.OnnxRuntime.Tensors;

var path = args[0];
var contract = JsonDocument.Parse(File.ReadAllText(Path.ChangeExtension(path, ".contract.json"))).RootElement;
var schema = contract.GetProperty("schema").GetString()!;
if (schema.Split('.')[0] != "1")
    throw new InvalidDataException($"{path}: contract schema {schema} found, 1.x expected. Use a newer client.");
var channels = contract.GetProperty("inputs")[0].GetProperty("channels").GetArrayLength();

// One thread: a small graph is slower on many.
using var options = new SessionOptions { IntraOpNumThreads = 1, InterOpNumThreads = 1 };
using var session = new InferenceSession(path, options);

NamedOnnxValue Zeros(JsonElement state)
{
    var dims = state.GetProperty("dims").EnumerateArray().Select(d => d.GetInt32()).Prepend(1).ToArray();  // one lane
    var name = state.GetProperty("in").GetString()!;
    return state.GetProperty("dtype").GetString() == "int32"
        ? NamedOnnxValue.CreateFromTensor(name, new DenseTensor<int>(dims))
        : NamedOnnxValue.CreateFromTensor(name, new DenseTensor<float>(dims));
}

NamedOnnxValue FedBack(JsonElement state, IDisposableReadOnlyCollection<DisposableNamedOnnxValue> given)
{
    var name = state.GetProperty("in").GetString()!;
    var value = given.First(v => v.Name == state.GetProperty("out").GetString());
    // A copy: what a run gave is freed with it.
    return state.GetProperty("dtype").GetString() == "int32"
        ? NamedOnnxValue.CreateFromTensor(name, value.AsTensor<int>().ToDenseTensor())
        : NamedOnnxValue.CreateFromTensor(name, value.AsTensor<float>().ToDenseTensor());
}

var states = contract.GetProperty("states").EnumerateArray().ToList();
var past = states.Select(Zeros).ToList();
while (Console.ReadLine() is { } line)
{
    var words = line.Split(' ', StringSplitOptions.RemoveEmptyEntries);
    var x = words.Skip(1).Select(w => w == "nan" ? float.NaN : float.Parse(w, CultureInfo.InvariantCulture)).ToArray();
    var feed = new List<NamedOnnxValue>(past)
    {
        NamedOnnxValue.CreateFromTensor("x", new DenseTensor<float>(x, new[] { 1, x.Length / channels, channels })),
        NamedOnnxValue.CreateFromTensor("start", new DenseTensor<int>(new[] { int.Parse(words[0]) }, new[] { 1, 1 })),
    };
    using var given = session.Run(feed);
    var y = given.First(v => v.Name == "y").AsEnumerable<float>();
    Console.WriteLine(string.Join(' ', y.Select(v => v.ToString("G9", CultureInfo.InvariantCulture))));
    past = states.Select(state => FedBack(state, given)).ToList();
}
