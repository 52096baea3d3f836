"""Unmodified clients against a running server: tritonclient over HTTP and gRPC, and openai.

    clients.py http://127.0.0.1:8000 MODEL EXPECTED.json

EXPECTED.json holds texts, and for each text alone the executor's vector in process: {"texts": [..], "vectors": [[..]]}.
"""
import json
import sys
import unittest

import numpy
import openai
import tritonclient.grpc as grpc
import tritonclient.http as http
from tritonclient.utils import InferenceServerException

URL, MODEL, EXPECTED = sys.argv[1:4]
ADDRESS = URL.removeprefix("http://")
with open(EXPECTED) as file:
    expected = json.load(file)
TEXTS = expected["texts"]
VECTORS = numpy.array(expected["vectors"], dtype=numpy.float32)


def elements(texts):
    return numpy.array([text.encode() for text in texts], dtype=numpy.object_)


class Clients(unittest.TestCase):
    def same(self, got, rows=slice(None)):
        """Bit for bit where a text is alone; up to rounding where it shares a batch."""
        expected = VECTORS[rows]
        got = numpy.asarray(got, dtype=numpy.float32)
        self.assertEqual(got.shape, expected.shape)
        if len(expected) == 1:
            self.assertTrue(numpy.array_equal(got, expected))
        else:
            numpy.testing.assert_allclose(got, expected, atol=2e-5)


class Http(Clients):
    def setUp(self):
        self.client = http.InferenceServerClient(ADDRESS)

    def tearDown(self):
        self.client.close()

    def infer(self, texts, binary_in, binary_out):
        tensor = http.InferInput("text", [len(texts)], "BYTES")
        tensor.set_data_from_numpy(elements(texts), binary_data=binary_in)
        output = http.InferRequestedOutput("embedding", binary_data=binary_out)
        return self.client.infer(MODEL, [tensor], outputs=[output], request_id="7")

    def test_health_and_metadata(self):
        self.assertTrue(self.client.is_server_live())
        self.assertTrue(self.client.is_server_ready())
        self.assertTrue(self.client.is_model_ready(MODEL))
        self.assertEqual(self.client.get_server_metadata()["name"], "opara-serve")
        metadata = self.client.get_model_metadata(MODEL)
        self.assertEqual(metadata["outputs"][0]["shape"], [-1, VECTORS.shape[1]])
        self.assertEqual(self.client.get_model_repository_index()[0]["state"], "READY")

    def test_json_and_bytes(self):
        for binary_in in (False, True):
            for binary_out in (False, True):
                answer = self.infer(TEXTS, binary_in, binary_out)
                self.same(answer.as_numpy("embedding"))
                self.assertEqual(answer.get_response()["id"], "7")
                for index, text in enumerate(TEXTS):
                    answer = self.infer([text], binary_in, binary_out)
                    self.same(answer.as_numpy("embedding"), slice(index, index + 1))

    def test_outputs_that_are_not_named(self):
        tensor = http.InferInput("text", [1], "BYTES")
        tensor.set_data_from_numpy(elements(TEXTS[:1]), binary_data=False)
        self.same(self.client.infer(MODEL, [tensor]).as_numpy("embedding"), slice(0, 1))

    def test_many_at_a_time(self):
        client = http.InferenceServerClient(ADDRESS, concurrency=8)
        tensor = http.InferInput("text", [1], "BYTES")
        tensor.set_data_from_numpy(elements(TEXTS[:1]))
        for request in [client.async_infer(MODEL, [tensor]) for _ in range(64)]:
            vector = request.get_result().as_numpy("embedding")
            numpy.testing.assert_allclose(vector, VECTORS[:1], atol=2e-5)
        client.close()

    def test_refusals(self):
        tensor = http.InferInput("text", [1], "BYTES")
        tensor.set_data_from_numpy(elements(["a"]))
        with self.assertRaisesRegex(InferenceServerException, "there is no model"):
            self.client.infer("other", [tensor])
        wrong = http.InferInput("text", [1], "FP32")
        wrong.set_data_from_numpy(numpy.zeros(1, numpy.float32))
        with self.assertRaisesRegex(InferenceServerException, "must be BYTES"):
            self.client.infer(MODEL, [wrong])
        with self.assertRaises(InferenceServerException):
            self.client.load_model(MODEL)


class Grpc(Clients):
    def setUp(self):
        self.client = grpc.InferenceServerClient(ADDRESS)

    def tearDown(self):
        self.client.close()

    def tensor(self, texts):
        tensor = grpc.InferInput("text", [len(texts)], "BYTES")
        tensor.set_data_from_numpy(elements(texts))
        return tensor

    def test_health_and_metadata(self):
        self.assertTrue(self.client.is_server_live())
        self.assertTrue(self.client.is_server_ready())
        self.assertTrue(self.client.is_model_ready(MODEL))
        self.assertEqual(self.client.get_server_metadata().name, "opara-serve")
        self.assertEqual(self.client.get_model_metadata(MODEL).outputs[0].name, "embedding")
        self.assertEqual(self.client.get_model_repository_index().models[0].state, "READY")

    def test_infer(self):
        answer = self.client.infer(MODEL, [self.tensor(TEXTS)], outputs=[grpc.InferRequestedOutput("embedding")])
        self.same(answer.as_numpy("embedding"))
        for index, text in enumerate(TEXTS):
            answer = self.client.infer(MODEL, [self.tensor([text])])
            self.same(answer.as_numpy("embedding"), slice(index, index + 1))

    def test_stream(self):
        answers = []
        self.client.start_stream(lambda result, error: answers.append((result, error)))
        for text in TEXTS:
            self.client.async_stream_infer(MODEL, [self.tensor([text])])
        self.client.stop_stream()
        self.assertEqual([error for _, error in answers], [None] * len(TEXTS))
        for index, (result, _) in enumerate(answers):
            self.same(result.as_numpy("embedding"), slice(index, index + 1))

    def test_refusals(self):
        with self.assertRaises(InferenceServerException) as caught:
            self.client.infer("other", [self.tensor(["a"])])
        self.assertEqual(caught.exception.status(), "StatusCode.NOT_FOUND")
        with self.assertRaises(InferenceServerException) as caught:
            self.client.get_model_config(MODEL)
        self.assertEqual(caught.exception.status(), "StatusCode.UNIMPLEMENTED")
        with self.assertRaises(InferenceServerException) as caught:
            self.client.infer(MODEL, [self.tensor(["a"])], timeout=1)
        self.assertEqual(caught.exception.status(), "StatusCode.DEADLINE_EXCEEDED")


class OpenAI(Clients):
    def setUp(self):
        self.client = openai.OpenAI(base_url=f"{URL}/v1", api_key="any", max_retries=0)

    def test_embeddings(self):
        answer = self.client.embeddings.create(model=MODEL, input=TEXTS)
        self.same([item.embedding for item in answer.data])
        self.assertGreater(answer.usage.total_tokens, len(TEXTS))
        for index, text in enumerate(TEXTS):
            for encoding in ({}, {"encoding_format": "float"}, {"encoding_format": "base64"}):
                answer = self.client.embeddings.create(model=MODEL, input=text, **encoding)
                if encoding.get("encoding_format") != "base64":
                    self.same([answer.data[0].embedding], slice(index, index + 1))

    def test_dimensions(self):
        answer = self.client.embeddings.create(model=MODEL, input=TEXTS, dimensions=3)
        for item in answer.data:
            self.assertEqual(len(item.embedding), 3)
            self.assertAlmostEqual(sum(x * x for x in item.embedding), 1, places=5)

    def test_models(self):
        self.assertIn(MODEL, [model.id for model in self.client.models.list()])

    def test_refusals(self):
        with self.assertRaises(openai.NotFoundError):
            self.client.embeddings.create(model="other", input="a")
        with self.assertRaises(openai.BadRequestError):
            self.client.embeddings.create(model=MODEL, input="a", dimensions=0)


unittest.main(argv=sys.argv[:1], verbosity=1)
