<?php

namespace App\Values;

/** No code for its JSON: the public properties are shown. */
class Money extends Labelling
{
    public function __construct(public float $amount, protected string $hidden, public ?Point $at = null)
    {
        parent::__construct('money');
    }
}
