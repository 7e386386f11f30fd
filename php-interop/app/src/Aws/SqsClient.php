<?php

namespace Aws\Sqs;

/**
 * Stands in for the client of the AWS SDK, which Debian does not package: it sends the requests of Laravel's own
 * queue class as the SDK does, but without a signature.
 */
class SqsClient
{
    private $handle;

    public function __construct(array $config)
    {
        $this->handle = curl_init();
        if (empty($config['credentials']['key'])) {
            throw new \InvalidArgumentException('no key for SQS');
        }
    }

    public function __call($operation, array $arguments)
    {
        [$parameters] = $arguments;
        $url = parse_url($parameters['QueueUrl']);
        curl_setopt_array($this->handle, [
            CURLOPT_URL => "{$url['scheme']}://{$url['host']}:{$url['port']}/",
            CURLOPT_POSTFIELDS => json_encode($parameters),
            CURLOPT_RETURNTRANSFER => true,
            CURLOPT_HTTPHEADER => [
                'Content-Type: application/x-amz-json-1.0',
                'X-Amz-Target: AmazonSQS.'.ucfirst($operation),
                'Authorization: AWS4-HMAC-SHA256 Credential=test/20200101/us-east-1/sqs/aws4_request, SignedHeaders=host, Signature=0',
            ],
        ]);
        $answer = curl_exec($this->handle);
        $status = curl_getinfo($this->handle, CURLINFO_HTTP_CODE);
        if ($status !== 200) {
            throw new \RuntimeException("SQS answered {$operation} with {$status}: {$answer}");
        }

        return new Result(json_decode($answer, true) ?: []);
    }
}

class Result extends \ArrayObject
{
    public function get($key)
    {
        return $this[$key] ?? null;
    }

    #[\ReturnTypeWillChange]
    public function offsetGet($key)
    {
        return $this->offsetExists($key) ? parent::offsetGet($key) : null;
    }
}
