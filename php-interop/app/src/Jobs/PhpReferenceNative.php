<?php

namespace App\Jobs;

use Illuminate\Contracts\Queue\ShouldQueue;

/** PHP references, also between the properties of the job. */
class PhpReferenceNative implements ShouldQueue
{
    use QueuedNatively;

    public $value = 0;

    public $alias = 0;

    public array $list = [];

    public function __construct()
    {
        $number = 5;
        $array = ['shared' => true];
        $this->value = &$number;
        $this->alias = &$number;
        $this->list = [1, &$number, 'again' => &$number, 'array' => &$array, 'same array' => &$array, 'copy' => $array];
    }
}
