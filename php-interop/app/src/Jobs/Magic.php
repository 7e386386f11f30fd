<?php

namespace App\Jobs;

use App\Values\Packed;
use App\Values\Sleeping;
use Illuminate\Contracts\Queue\ShouldQueue;

/** Classes that choose themselves what is serialized. */
class Magic implements ShouldQueue
{
    use Queued;

    public Packed $packed;

    public array $more;

    public function __construct()
    {
        $this->packed = new Packed('left', ['right', 1.0]);
        $this->more = [
            'sleeping' => new Sleeping('kept', 'forgotten'),
            'array object' => new \ArrayObject(['a' => 1, 'b' => [2]]),
            'storage' => self::storage(),
            'stack' => self::stack(),
        ];
    }

    private static function storage(): \SplObjectStorage
    {
        $storage = new \SplObjectStorage;
        $storage[(object) ['n' => 1]] = 'first';

        return $storage;
    }

    private static function stack(): \SplStack
    {
        $stack = new \SplStack;
        $stack->push('bottom');
        $stack->push('top');

        return $stack;
    }
}
