<?php

namespace App\Jobs;

use Illuminate\Contracts\Queue\ShouldQueue;

/** PHP references: two names of one variable. */
class PhpReference implements ShouldQueue
{
    use Queued;

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
